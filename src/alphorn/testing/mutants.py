"""Deliberate mistakes in the protocol. A campaign that does not catch each of them proves nothing about the protocol.

A mutant patches the protocol's classes while it is applied; its `patch` gives (class, attribute, replacement) for
everything it changes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

Patch = tuple[type, str, Any]


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One mistake."""

    name: str
    description: str
    patch: Callable[[], list[Patch]]  # called when applied, so that naming a mutant imports nothing

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
            for owner, name, original in before:
                setattr(owner, name, original)


MUTANTS: tuple[Mutant, ...] = ()
