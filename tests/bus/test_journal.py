"""The journal: one hand-over per turn, and nothing said before it is durable."""

from alphorn.bus.journal import Journal
from alphorn.bus.machine import DropAfter, DropThrough


def test_a_turns_writes_become_one_hand_over_in_order() -> None:
    journal = Journal()
    journal.write(DropAfter(1), DropThrough(2))
    journal.write(DropAfter(3))
    persist = journal.take()
    assert (persist.token, persist.writes) == (1, [DropAfter(1), DropThrough(2), DropAfter(3)])
    assert not journal.has_writes


def test_what_waits_for_a_write_runs_once_and_only_when_it_is_durable() -> None:
    journal, said = Journal(), []
    journal.write(DropAfter(1))
    journal.then(lambda: said.append("promise"))
    token = journal.take().token
    assert said == []
    journal.on_durable(token)
    journal.on_durable(token)
    assert said == ["promise"]


def test_a_later_token_settles_all_before_it_in_order() -> None:
    journal, said = Journal(), []
    for word in ("one", "two", "three"):
        journal.write(DropAfter(1))
        journal.then(lambda word=word: said.append(word))  # type: ignore[misc]
        journal.take()
    journal.on_durable(2)
    assert said == ["one", "two"]
    assert not journal.is_idle
    journal.on_durable(3)
    assert said == ["one", "two", "three"]
    assert journal.is_idle


def test_something_that_waits_is_handed_over_even_without_a_write_of_its_own() -> None:
    journal = Journal()
    assert not journal.has_writes
    journal.then(lambda: None)
    assert journal.has_writes
    assert journal.take().writes == []


def test_tokens_grow_by_one() -> None:
    journal = Journal()
    tokens = []
    for _ in range(3):
        journal.then(lambda: None)
        tokens.append(journal.take().token)
    assert tokens == [1, 2, 3]


def test_what_a_continuation_writes_belongs_to_the_next_turn() -> None:
    journal = Journal()
    journal.then(lambda: journal.write(DropAfter(7)))
    journal.on_durable(journal.take().token)
    assert journal.take().writes == [DropAfter(7)]
