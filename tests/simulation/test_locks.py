"""The checker of locks: in the end nobody has any, but for tellers that may come back to their accounts."""

from types import SimpleNamespace
from typing import Any

import pytest

from alphorn.model.commands import key_of
from alphorn.testing.checkers.messages import NothingIsLocked
from alphorn.testing.cluster_plan import ACCOUNTS
from alphorn.testing.watch import Violation

LIVING, GONE = b"l" * 16, b"g" * 16


def checker(name: str, connection: bytes, *, locked: int, outstanding: int) -> NothingIsLocked:
    consumer = {"key": key_of(connection, 1).hex(), "outstanding": outstanding}
    outlet = {"locked": locked, "withheld": 0, "leaving": [], "maybe_redelivered": 0, "consumers": [consumer]}
    machine = SimpleNamespace(describe=lambda: {"dispatcher": {"destinations": {1: {0: outlet}}}})
    engine = SimpleNamespace(destinations={1: SimpleNamespace(destination=name)})
    room = SimpleNamespace(machine=machine, engine=engine)
    cluster: Any = SimpleNamespace(book=None, message_managers=[room], connections=lambda: {LIVING})
    return NothingIsLocked(cluster)


def test_what_a_teller_that_has_gone_was_given_in_an_account_may_wait_for_it() -> None:
    checker(ACCOUNTS[0], GONE, locked=2, outstanding=2).finish()


@pytest.mark.parametrize(
    ("name", "connection", "locked", "outstanding"),
    [
        (ACCOUNTS[0], LIVING, 1, 1),  # it has settled all it had
        (ACCOUNTS[0], GONE, 3, 2),  # and one of nobody's
        ("queue:a", GONE, 1, 1),  # where everything was consumed
    ],
)
def test_any_other_lock_is_found(name: str, connection: bytes, locked: int, outstanding: int) -> None:
    with pytest.raises(Violation, match="nothing is left in"):
        checker(name, connection, locked=locked, outstanding=outstanding).finish()
