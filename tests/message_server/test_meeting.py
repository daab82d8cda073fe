"""The link between the two message servers."""

from alphorn.message_server.core import MessageServer
from alphorn.message_server.exchange import Exchange
from alphorn.message_server.machine import Met, Output, Part, Parted, PeerSaid, TellPeer
from alphorn.message_server.ring import Entry
from alphorn.message_server.roster import Roster
from alphorn.message_server.settings import Settings
from alphorn.model import internal

RUN, EARLIER, LATER = (bytes([number]) * internal.RUN_BYTES for number in (1, 2, 3))


def _server() -> MessageServer:
    settings = Settings(name="ms1", run=RUN, peer="ms2", nodes={"mm1": "message_manager"})
    return MessageServer(settings, now=0.0, wall=lambda now: now)


def _to_peer(outputs: list[Output]) -> list[Output]:
    return [output for output in outputs if isinstance(output, TellPeer | Part)]


def _meet(run: bytes, server: str = "ms2") -> PeerSaid:
    return PeerSaid(internal.Meet(internal.VERSION, server, run, []))


def test_what_answers_an_earlier_link_is_not_said_on_the_next_one_when_both_came_at_once() -> None:
    server = _server()
    for item in (Met(), _meet(EARLIER), Parted(), Met()):
        server.receive(item, 0.0)
    said = _to_peer(server.take_outputs())
    assert said == [TellPeer(internal.Meet(internal.VERSION, "ms1", RUN, []))]


def test_a_link_to_somebody_else_is_closed_and_the_next_one_is_not() -> None:
    server = _server()
    server.receive(Met(), 0.0)
    server.receive(_meet(EARLIER, "ms3"), 0.0)
    assert isinstance(_to_peer(server.take_outputs())[-1], Part)
    for item in (Met(), _meet(EARLIER, "ms3"), Met(), _meet(LATER)):
        server.receive(item, 0.0)
    assert not [output for output in server.take_outputs() if isinstance(output, Part)]


def test_the_other_server_is_given_what_is_kept_before_what_is_not() -> None:
    settings = Settings(name="ms1", run=RUN, peer="ms2", nodes={})
    said: list[Output] = []
    exchange = Exchange(Roster({}, 10), settings, said.append)
    for number in (1, 2):
        exchange.ring.append(Entry("worker", EARLIER, number, b"body", None), 0.0)
    exchange.ring.skip(internal.Dropped(EARLIER, 3, 5))
    exchange.ring.append(Entry("worker", EARLIER, 6, b"body", None), 0.0)
    exchange.ring.skip(internal.Dropped(EARLIER, 7, 9))
    exchange.meet([])
    frames = [output.frame for output in said if isinstance(output, TellPeer)]
    order = [frame.number if isinstance(frame, internal.Hold) else frame.records[0].first for frame in frames]
    assert order == [1, 2, 3, 6, 7]
