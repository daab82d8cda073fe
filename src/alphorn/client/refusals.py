"""Errors that came over the wire by name, as exceptions again."""

from alphorn.model import errors
from alphorn.model.errors import Error

_CLASSES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.Error)
}


def error_of(name: str, reason: str) -> Error:
    """The error that a server named; a name of a newer version becomes a plain `Error`."""
    return _CLASSES.get(name, errors.Error)(reason or name)


def again(error: Error) -> Error:
    """A copy to raise: one object raised in several threads would gather all their tracebacks."""
    return type(error)(*error.args)
