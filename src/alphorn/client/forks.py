"""Tells a process that was forked from its parent: a connection belongs to the process that opened it."""

import os

from alphorn.model.errors import Misuse


class ForkCount:
    """How many forks lie between this process and the one that imported this module."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0
        os.register_at_fork(after_in_child=self._on_fork)

    def _on_fork(self) -> None:
        self.number += 1


FORKS = ForkCount()


def forked() -> Misuse:
    """The error for a connection of the parent used in a child."""
    return Misuse("this connection belongs to the parent of this forked process; connect again in the child")
