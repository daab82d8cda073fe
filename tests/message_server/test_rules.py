"""The rules that parts keep by themselves, each in its smallest case."""

from alphorn.message_server.exchange import Exchange
from alphorn.message_server.lanes import Listening
from alphorn.message_server.machine import Output, PeerSaid, Tell
from alphorn.message_server.process_machine import TellEvent
from alphorn.message_server.ring import Entry, Ring
from alphorn.message_server.roster import Roster
from alphorn.message_server.settings import Settings
from alphorn.message_server.tells import Hearing
from alphorn.model import internal
from alphorn.model.events import Event
from tests.message_server.meshes import Mesh

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def relay(number: int, base: int = 1) -> internal.Relay:
    return internal.Relay("a", A, base, number, b"")


def ring(entries_max: int = 100) -> Ring:
    return Ring(keep_s=60.0, bytes_max=1 << 20, entries_max=entries_max)


def entry(run: bytes, number: int, event: Event | None = None) -> Entry:
    return Entry("somebody", run, number, b"", event)


def test_a_receiver_takes_exactly_the_next_number() -> None:
    hearing = Hearing()
    assert [hearing.hear("ms1", relay(number)) for number in (2, 1, 3, 1, 2)] == [False, True, False, False, True]


def test_a_receiver_does_not_wait_for_what_its_sender_has_given_up() -> None:
    hearing = Hearing()
    assert [hearing.hear("ms1", frame) for frame in (relay(1), relay(5, base=5), relay(2))] == [True, True, False]


def test_what_is_said_again_is_confirmed_again_where_it_was_said() -> None:
    hearing = Hearing()
    hearing.hear("ms1", relay(1))
    assert hearing.confirmations(["ms1", "ms2"]) == {}
    hearing.take(A, 1)
    assert hearing.confirmations(["ms1", "ms2"]) == {"ms1": [(A, 1)]}
    hearing.hear("ms2", relay(1))
    assert hearing.confirmations(["ms1", "ms2"]) == {"ms2": [(A, 1)]}


def test_what_is_handed_out_and_not_taken_comes_again_at_a_new_home_and_is_confirmed_when_it_is_taken() -> None:
    listening = Listening()
    assert listening.hear(A, 1, 10)
    assert listening.come_home() == [(A, 0)]
    assert not listening.hear(A, 1, 3)
    assert listening.confirmation() == 2
    listening.take(A, 1)
    assert listening.confirmation() == 3


def test_what_a_former_home_gives_late_does_not_hold_up_what_is_confirmed_to_the_new_one() -> None:
    listening = Listening()
    listening.come_home()
    listening.hear(A, 1, 7)
    listening.hear(A, 1, 0)
    listening.take(A, 1)
    assert listening.confirmation() == 7
    listening.hear(A, 2, 8)
    listening.hear(A, 2, 9)
    listening.take(A, 2)
    assert listening.confirmation() == 9


def test_a_reader_gets_only_what_is_beyond_its_numbers_though_lanes_are_mixed() -> None:
    kept = ring()
    for run, number in ((A, 1), (B, 1), (A, 2), (B, 2)):
        kept.append(entry(run, number), 0.0)
    cursor = kept.open(C, frozenset(), {A: 2, B: 0}, 1 << 20)
    assert [(it.run, it.number) for it in kept.read(cursor)] == [(B, 1), (B, 2)]


def test_a_reader_that_confirms_nothing_is_given_no_more_than_its_bound() -> None:
    kept = ring()
    for number in range(1, 51):
        kept.append(entry(A, number), 0.0)
    cursor = kept.open(C, frozenset(), {}, 1000)
    assert len(list(kept.read(cursor))) == 5
    cursor.confirm(2)
    assert [it.number for it in kept.read(cursor)] == [6, 7]


def test_a_reader_hears_how_far_it_is_in_lanes_of_which_it_wants_nothing() -> None:
    kept = ring()
    cursor = kept.open(C, frozenset(), {}, 1000)
    kept.append(entry(A, 1, Event(kind="disk_low", node="n")), 0.0)
    assert list(kept.read(cursor)) == []
    assert cursor.take_passed() == ({A: 1}, 0)
    assert cursor.through == 1


def test_numbers_that_were_never_here_are_missed_by_who_knows_the_lane_and_do_not_come_later() -> None:
    kept = ring()
    knows, is_new = kept.open(C, frozenset(), {A: 2}, 1000), kept.open(B, frozenset(), {}, 1000)
    kept.begin_lane(A, 6)
    assert (knows.missed, is_new.missed) == (3, 0)
    assert kept.has(A, 5)
    assert kept.is_next(A, 6)
    assert not kept.is_next(A, 7)


def test_what_is_dropped_unread_is_missed_once_also_by_who_comes_later() -> None:
    kept = ring(entries_max=2)
    cursor = kept.open(C, frozenset(), {}, 1000)
    for number in range(1, 6):
        kept.append(entry(A, number), 0.0)
    assert cursor.take_passed() == ({A: 3}, 3)
    assert [it.number for it in kept.read(cursor)] == [4, 5]
    later = kept.open(B, frozenset(), {A: 1}, 1000)
    assert later.take_passed() == ({A: 3}, 2)


def test_what_the_other_server_has_not_confirmed_is_not_safe() -> None:
    said: list[Output] = []
    exchange = Exchange(Roster({}, 10), Settings(name="ms1", run=C, peer="ms2", nodes={}), said.append)
    exchange.meet([])
    exchange.happen(Event(kind="disk_low", node="n"), 0.0)
    exchange.finish_turn()
    assert exchange.ring.safe(C) == 0
    exchange.held(1)
    exchange.finish_turn()
    assert exchange.ring.safe(C) == 1
    exchange.part()
    exchange.meet([])
    assert exchange.ring.safe(C) == 0  # another run of the other server, which has nothing
    assert not any(isinstance(output, Tell) for output in said)


def test_servers_that_meet_again_tell_each_other_only_what_they_lack() -> None:
    mesh = Mesh()
    a, _ = mesh.join("a", "b")
    for _ in range(5):
        a.tell(internal.OTHERS, b"both have it")
    mesh.run(0.5)
    mesh.cut_off("ms1", "ms2")
    mesh.mend()
    mesh.said.clear()
    mesh.run(0.5)
    assert len(mesh.frames(internal.Synchronised)) == 2
    assert mesh.frames(internal.Hold) == []


def test_who_is_reached_on_another_way_is_told_to_all_so_that_they_say_again_what_may_be_lost() -> None:
    mesh = Mesh()
    _, b = mesh.join("a", "b")
    mesh.said.clear()
    mesh.cut_off("b", "ms1")
    mesh.flush()
    arrived = mesh.frames(internal.Arrived, speaker="ms1", listener="a")
    assert [row.run for frame in arrived if isinstance(frame, internal.Arrived) for row in frame.rows] == [b.run]


def test_what_the_other_server_says_of_who_is_here_itself_may_be_older_and_does_not_count() -> None:
    mesh = Mesh()
    (a,) = mesh.join("a")
    (b,) = mesh.join("b", wants=("disk_low",))
    older = internal.Row("b", b.run, internal.PROGRAM)
    mesh.servers["ms1"].receive(PeerSaid(internal.Here([older])), mesh.now)
    mesh.cut_off("b", "ms1")
    mesh.cut_off("b", "ms2")
    mesh.mend()
    mesh.run(2.0)
    mesh.servers["ms1"].receive(PeerSaid(internal.Here([older])), mesh.now)
    mesh.kill("ms2")
    mesh.run(0.5)
    b.do(TellEvent(Event(kind="disk_ok", node="n")))
    a.do(TellEvent(Event(kind="disk_low", node="n")))
    mesh.run(0.5)
    process = mesh.servers["ms1"]._roster.of_run(b.run)
    assert process is not None
    assert process.row.wants == ["disk_low"]
    assert [event.kind for event in b.told] == ["disk_low"]
