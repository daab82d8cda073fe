"""Questions that take long: one is answered in a turn, so that nobody waits for all that somebody asks at once."""

from alphorn.message_manager.core import MessageManager
from alphorn.message_manager.machine import Asked, Demoted, LinkClosed, Promoted, Tell
from alphorn.message_manager.status import About
from alphorn.model import link, log_link

LINK, OTHER = 1, 2
MISSING = 9  # no queue has this number


def manager_of(*, is_primary: bool = True) -> MessageManager:
    made = MessageManager(About(name="mm1", pid=1, address="", channel="main"), wall_ms=int, read={}.get)
    if is_primary:
        made.receive(Promoted(1, b"m" * 10, ()), 0.0)
    made.take_outputs()
    return made


def answered(manager: MessageManager) -> list[tuple[int, int]]:
    """Links and requests that a turn answers."""
    told = [output for output in manager.take_outputs() if isinstance(output, Tell)]
    return [(tell.link, tell.frame.request) for tell in told if hasattr(tell.frame, "request")]


def test_one_of_many_questions_is_answered_in_a_turn_and_links_take_turns() -> None:
    manager = manager_of()
    for request in range(3):
        manager.receive(Asked(LINK, link.Look(request, MISSING, "", 0, 10)), 0.0)
    manager.receive(Asked(OTHER, link.Describe(7, 10)), 0.0)
    manager.receive(Asked(OTHER, log_link.Survey(8, [], [])), 0.0)
    turns = []
    while manager.next_deadline() <= 0.0:
        turns.append(answered(manager))
    assert turns == [[(LINK, 0)], [(OTHER, 7)], [(LINK, 1)], [(OTHER, 8)], [(LINK, 2)]]
    assert answered(manager) == []


def test_a_backup_answers_readers_and_leaves_looks_to_the_primary() -> None:
    manager = manager_of(is_primary=False)
    manager.receive(Asked(LINK, link.Look(1, MISSING, "", 0, 10)), 0.0)
    manager.receive(Asked(LINK, log_link.Survey(2, [], [])), 0.0)
    assert [answered(manager), answered(manager)] == [[], [(LINK, 2)]]
    assert manager.next_deadline() > 0.0


def test_who_is_gone_is_not_answered_and_who_is_primary_no_more_answers_no_looks() -> None:
    manager = manager_of()
    for asking in (LINK, OTHER):
        manager.receive(Asked(asking, link.Look(1, MISSING, "", 0, 10)), 0.0)
        manager.receive(Asked(asking, link.Describe(2, 10)), 0.0)
    manager.receive(LinkClosed(LINK), 0.0)
    manager.receive(Demoted(2), 0.0)
    assert [answered(manager), answered(manager)] == [[], [(OTHER, 2)]]
