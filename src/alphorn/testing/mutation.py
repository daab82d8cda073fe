"""What a mutant is: a deliberate mistake in the protocol that can be put in force and taken back.

Machines keep bound methods of their roles, so a mistake must be in force before they are made; and since patches are
undone in reverse order, two mistakes on the same attribute may be nested.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import msgspec

Patch = tuple[type | ModuleType, str, Any]  # class or module, attribute of its own, replacement


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One mistake. `patch` gives everything it changes."""

    name: str
    description: str
    kind: str = "log"  # of the seeds that show it: "log", "cluster", "channels", "transfers" or "servers"
    patch: Callable[[], list[Patch]]  # called when applied: it sees the classes as they are then

    @contextmanager
    def apply(self) -> Iterator[None]:
        """The mistake is in force inside the `with` block, in this process."""
        patches = self.patch()
        before = [(owner, name, owner.__dict__[name]) for owner, name, _ in patches]
        try:
            for owner, name, replacement in patches:
                setattr(owner, name, replacement)
            yield
        finally:
            for owner, name, original in reversed(before):
                setattr(owner, name, original)
