"""Who may use a client id, and what belongs to it, when clients come, go and are started again."""

import pytest

from alphorn.message_manager.absent import HOLD_S
from alphorn.message_manager.claims import WAIT_S
from alphorn.message_manager.machine import ClientManagerLeft, Input, LinkClosed, LinkOpened
from alphorn.model import link
from alphorn.model.commands import CreateDestination, Return, Subscribe, key_of
from alphorn.model.destinations import Policy, parse_destination
from tests.message_manager.test_core import CONNECTION, FIRST, SECOND, Serving

NEWCOMER = b"n" * 16
TOPIC = 2


class Claiming(Serving):
    """A primary with Client Managers `cm1` and `cm2`; `me` is on the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.introduce(1, FIRST)
        self.introduce(2, SECOND)
        self.claim(1, CONNECTION)
        assert not self.refusal(1)

    def claim(self, number: int, connection: bytes) -> None:
        self.told.clear()
        self.ask(number, link.ClaimClient(7, connection, "me"))

    def refusal(self, number: int) -> str:
        """Why the claim is refused; nothing where it is granted."""
        [answer] = self.answers(number)
        return answer.reason

    def lose(self, number: int, connection: bytes) -> None:
        self.ask(number, link.ConnectionLost(connection))


def test_a_second_connection_with_the_same_client_id_is_refused() -> None:
    serving = Claiming()
    serving.claim(2, NEWCOMER)
    serving.pass_time(WAIT_S)
    assert serving.refusal(2) == (
        "the client id 'me' is in use by another connection; close that, or choose another id"
    )


def test_a_client_id_is_free_when_its_connection_is_lost() -> None:
    serving = Claiming()
    serving.lose(1, CONNECTION)
    serving.claim(2, NEWCOMER)
    assert not serving.refusal(2)


def test_a_connection_whose_id_was_taken_over_does_not_come_back() -> None:
    serving = Claiming()
    serving.lose(1, CONNECTION)
    serving.claim(2, NEWCOMER)
    serving.claim(1, CONNECTION)
    serving.pass_time(WAIT_S)
    assert "in use" in serving.refusal(1)


def test_a_claim_waits_a_little_for_word_that_the_connection_before_has_ended() -> None:
    serving = Claiming()
    serving.claim(2, NEWCOMER)
    assert not serving.answers(2)
    serving.lose(1, CONNECTION)
    assert not serving.refusal(2)


def test_a_resumed_connection_takes_its_own_id_through_another_client_manager() -> None:
    serving = Claiming()
    serving.claim(2, CONNECTION)
    assert not serving.refusal(2)
    serving.lose(1, CONNECTION)
    serving.claim(1, NEWCOMER)
    serving.pass_time(WAIT_S)
    assert "in use" in serving.refusal(1)


def test_a_client_manager_that_introduces_itself_again_has_lost_whom_it_does_not_name_any_more() -> None:
    serving = Claiming()
    serving.ask(1, link.Introduce("cm1", FIRST, 1, "", [], []))  # the client left while it knew no primary to tell
    serving.claim(2, NEWCOMER)
    assert not serving.refusal(2)


def test_whom_another_client_manager_names_is_not_lost_by_that() -> None:
    serving = Claiming()
    serving.claim(2, CONNECTION)
    serving.ask(1, link.Introduce("cm1", FIRST, 1, "", [], []))
    serving.claim(1, NEWCOMER)
    serving.pass_time(WAIT_S)
    assert "in use" in serving.refusal(1)


def test_a_broken_link_says_nothing_about_the_clients_behind_it() -> None:
    serving = Claiming()
    serving.receive(LinkClosed(1))
    serving.claim(2, NEWCOMER)
    serving.pass_time(WAIT_S)
    assert "in use" in serving.refusal(2)


@pytest.mark.parametrize(
    "happened", [(LinkClosed(1), ClientManagerLeft(FIRST)), (ClientManagerLeft(FIRST), LinkClosed(1))]
)
def test_the_clients_of_a_client_manager_that_left_are_lost(happened: tuple[Input, Input]) -> None:
    serving = Claiming()
    serving.claim(2, NEWCOMER)
    serving.receive(happened[0])
    assert not serving.answers(2)
    serving.receive(happened[1])
    assert not serving.refusal(2)


def test_whose_link_stays_broken_is_lost_in_the_end() -> None:
    serving = Claiming()
    serving.receive(LinkClosed(1))
    serving.pass_time(HOLD_S)
    serving.claim(2, NEWCOMER)
    assert not serving.refusal(2)


def test_a_client_manager_that_links_again_without_a_client_has_lost_it() -> None:
    serving = Claiming()
    serving.receive(LinkClosed(1))
    serving.introduce(3, FIRST)
    serving.claim(2, NEWCOMER)
    assert not serving.refusal(2)


def test_a_claim_through_a_link_that_broke_is_dropped() -> None:
    serving = Claiming()
    serving.claim(2, NEWCOMER)
    serving.receive(LinkClosed(2))
    serving.lose(1, CONNECTION)
    serving.receive(LinkOpened(4))
    serving.introduce(4, SECOND)
    serving.claim(4, b"x" * 16)
    assert not serving.refusal(4)


@pytest.mark.requirement("HA-20")
def test_a_new_primary_gives_no_id_before_every_client_manager_has_named_its_clients() -> None:
    serving = Serving(known=(FIRST, SECOND))
    serving.introduce(2, SECOND)
    serving.ask(2, link.Settled())
    serving.ask(2, link.ClaimClient(7, NEWCOMER, "me"))
    serving.pass_time(WAIT_S / 2)
    assert not serving.answers(2)
    serving.receive(LinkOpened(1))
    serving.ask(1, link.Introduce("cm1", FIRST, 1, "", [CONNECTION], [(CONNECTION, "me")]))
    serving.ask(1, link.Settled())
    serving.pass_time(WAIT_S)
    [answer] = serving.answers(2)
    assert "in use" in answer.reason


# --- durable subscriptions of programs that are started again ---


def subscribed(serving: Claiming, consumer: bytes, *, is_shared: bool = False) -> None:
    """A durable subscription with a consumer, which has been given one message."""
    serving.apply(CreateDestination(parse_destination("topic:t"), Policy()))
    serving.apply(subscribe(consumer, is_shared=is_shared))
    serving.ask(1, link.Attach(9, consumer, TOPIC, 1, "", 10, []))


def subscribe(consumer: bytes, *, is_shared: bool = False, selector: str = "") -> Subscribe:
    return Subscribe(TOPIC, "news", "me", consumer, selector, True, is_shared, b"", -1)


def claim_subscription(serving: Claiming, wanted: Subscribe) -> str:
    serving.told.clear()
    serving.ask(2, link.Claim(8, wanted))
    [answer] = serving.answers(2)
    return answer.reason


def test_a_restarted_program_takes_its_durable_subscription_over_at_once() -> None:
    serving = Claiming()
    old, new = key_of(CONNECTION, 1), key_of(NEWCOMER, 1)
    subscribed(serving, old)
    serving.publish(1, TOPIC)
    assert serving.delivered(1) == [(1, 1)]
    serving.lose(1, CONNECTION)
    assert claim_subscription(serving, subscribe(new)) == ""
    assert serving.ordered == [Return(TOPIC, 1, old, [1, 1], delay_ms=0)]
    serving.apply(subscribe(new))
    serving.ask(2, link.Attach(9, new, TOPIC, 1, "", 10, []))
    assert serving.delivered(2) == [(1, 2)]


def test_a_durable_subscription_behind_a_broken_link_is_in_use() -> None:
    serving = Claiming()
    subscribed(serving, key_of(CONNECTION, 1))
    serving.receive(LinkClosed(1))
    assert "has an active consumer" in claim_subscription(serving, subscribe(key_of(NEWCOMER, 1)))


def test_who_shares_a_subscription_leaves_the_lost_ones_what_they_hold() -> None:
    serving = Claiming()
    subscribed(serving, key_of(CONNECTION, 1), is_shared=True)
    serving.publish(1, TOPIC)
    serving.lose(1, CONNECTION)
    assert claim_subscription(serving, subscribe(key_of(NEWCOMER, 1), is_shared=True)) == ""
    assert serving.ordered == []


def test_a_restarted_program_ends_the_subscription_of_its_predecessor() -> None:
    serving = Claiming()
    subscribed(serving, key_of(CONNECTION, 1))
    serving.ask(2, link.FindSubscription(8, "me", "news"))
    assert "active consumer" in serving.answers(2)[-1].reason
    serving.lose(1, CONNECTION)
    serving.ask(2, link.FindSubscription(8, "me", "news"))
    assert serving.answers(2)[-1].number == TOPIC << 32 | 1
