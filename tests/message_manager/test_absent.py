"""Who is away, and for how long: whoever goes last is waited for longest."""

from alphorn.message_manager.absent import HOLD_S, LATE_S, RESUME_S, Absent


def test_connections_are_forgotten_in_the_order_in_which_they_were_lost_last() -> None:
    absent = Absent()
    absent.lose(b"a", 1.0)
    absent.lose(b"b", 2.0)
    absent.lose(b"a", 3.0)
    assert absent.next_deadline() == 2.0 + RESUME_S
    assert absent.overdue_connections(2.5 + RESUME_S) == [b"b"]
    assert absent.next_deadline() == 3.0 + RESUME_S
    assert absent.overdue_connections(3.0 + RESUME_S) == [b"a"]
    assert absent.next_deadline() == float("inf")


def test_a_consumer_that_is_lost_again_is_not_waited_for_any_longer_by_that() -> None:
    absent = Absent()
    absent.lose(b"connection", 0.0)
    absent.lose_consumers([b"a", b"b"], 1.0)
    absent.lose_consumers([b"a", b"c"], 2.0)
    absent.consumer_back(b"b")
    assert absent.overdue_consumers(1.0 + HOLD_S) == [b"a"]
    assert absent.next_deadline() == 2.0 + HOLD_S
    absent.back(b"connection")
    assert absent.overdue_consumers(2.0 + HOLD_S) == [b"c"]
    assert absent.next_deadline() == float("inf")


def test_who_looks_late_could_not_hear_who_came_back_and_waits_once_more() -> None:
    absent = Absent()
    absent.lose(b"connection", 0.0)
    absent.lose_consumers([b"a", b"b"], 0.0)
    woken_up = HOLD_S + LATE_S
    assert absent.overdue_consumers(woken_up) == []
    assert absent.next_deadline() == woken_up + HOLD_S
    absent.consumer_back(b"a")
    assert absent.overdue_consumers(woken_up + HOLD_S) == [b"b"]
    woken_up = RESUME_S + LATE_S
    assert absent.overdue_connections(woken_up) == []
    assert absent.overdue_connections(woken_up + RESUME_S) == [b"connection"]
    assert absent.next_deadline() == float("inf")


def test_who_always_looks_late_gives_up_in_the_end() -> None:
    absent = Absent()
    absent.lose_consumers([b"a"], 0.0)
    assert absent.overdue_consumers(20.0) == []
    assert absent.overdue_consumers(40.0) == [b"a"]


def test_who_came_back_and_is_lost_again_is_waited_for_anew() -> None:
    absent = Absent()
    absent.lose_consumers([b"a"], 0.0)
    assert absent.overdue_consumers(20.0) == []
    absent.consumer_back(b"a")
    absent.lose_consumers([b"a"], 21.0)
    assert absent.overdue_consumers(40.0) == []
