"""What a Client Manager tells the cluster of: other primaries, and channels without any."""

from alphorn.client_manager.machine import Happen, Order
from alphorn.client_manager.news import LOST_S
from alphorn.model import link
from alphorn.model.commands import decode_entry
from alphorn.model.events import KINDS, Event
from tests.client_manager.managing import Managing, batch


class Listening(Managing):
    """A Client Manager whose events are kept."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        super().__init__(channel_names=("main",))

    def turn(self) -> None:
        outputs = self.manager.take_outputs()
        self.told += [output.event for output in outputs if isinstance(output, Happen)]
        self.entries += [decode_entry(output.payload) for output in outputs if isinstance(output, Order)]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.manager.on_time(self.now)
        self.turn()
        for event in self.told:
            KINDS.check(event.kind)


def test_the_first_primary_that_is_found_is_no_news_and_the_next_one_is() -> None:
    managing = Listening()
    assert managing.told == []
    managing.tell(link.Role("mm1", 1, True))
    managing.link_up("mm2", is_primary=True, epoch=2)
    [event] = managing.told
    assert (event.kind, event.node, event.channel, event.epoch) == ("primary_changed", "mm2", "main", 2)


def test_a_channel_without_a_primary_is_lost_after_a_while_and_once() -> None:
    managing = Listening()
    managing.link_down("mm1")
    assert managing.manager.next_deadline() <= LOST_S
    managing.pass_time(LOST_S / 2)
    assert managing.told == []
    managing.pass_time(LOST_S)
    managing.pass_time(10 * LOST_S)
    [event] = managing.told
    assert (event.kind, event.channel, event.epoch) == ("channel_lost", "main", 1)


def test_a_takeover_in_time_is_no_loss() -> None:
    managing = Listening()
    managing.tell(link.Role("mm1", 1, False))
    managing.pass_time(LOST_S / 2)
    managing.link_up("mm2", is_primary=True, epoch=2)
    managing.pass_time(10 * LOST_S)
    assert [event.kind for event in managing.told] == ["primary_changed"]


def test_a_channel_whose_log_goes_on_is_not_lost_though_its_primary_cannot_be_reached_from_here() -> None:
    managing = Listening()
    managing.link_down("mm1")
    batch(managing, "a")
    managing.pass_time(LOST_S)
    assert managing.told == []
    managing.pass_time(LOST_S)
    assert [event.kind for event in managing.told] == ["channel_lost"]
