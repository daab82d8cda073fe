"""What people are shown of a value that has something in it which nobody is to see."""

import msgspec

CONFIDENTIAL = frozenset(("password", "secret", "signet", "ticket"))  # names of fields


def shown(value: msgspec.Struct) -> str:
    """A `repr` in which what is confidential only says whether it is there."""
    fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
    said = (f"{name}={'…' if name in CONFIDENTIAL and field else repr(field)}" for name, field in fields)
    return f"{type(value).__name__}({', '.join(said)})"
