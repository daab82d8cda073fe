"""The account of both ends must catch what it is there for."""

from alphorn.testing.traffic_account import TrafficAccount


def account(*, sent: int = 4, is_shared: bool = False) -> TrafficAccount:
    made = TrafficAccount()
    made.open_flow("q", ["p"], is_shared=is_shared)
    for number in range(1, sent + 1):
        made.sent("p", number)
        made.confirmed("p", number, number)
    return made


def receive(made: TrafficAccount, *numbers: int, count: int = 1, consumer: str = "c") -> None:
    for number in numbers:
        made.received("q", consumer, "p", number, count, float(number))


def test_what_arrives_once_and_in_order_is_well():
    made = account()
    receive(made, 1, 2, 3, 4)
    result = made.close()
    assert result.faults == []
    assert (result.sent, result.confirmed, result.received) == (4, 4, 4)


def test_what_was_confirmed_and_never_arrived_is_lost():
    made = account()
    receive(made, 1, 2, 4)
    result = made.close()
    assert result.lost == 1
    assert result.faults == ["q never gave out [(3, 3)] of p, which were confirmed"]


def test_what_was_not_confirmed_may_be_missing():
    made = account(sent=2)
    made.sent("p", 3)
    receive(made, 1, 2)
    assert made.close().faults == []


def test_a_message_that_comes_again_must_say_so():
    made = account(sent=2)
    receive(made, 1, 2)
    receive(made, 2, count=2)
    assert (made.close().redelivered, made.close().faults) == (1, [])
    receive(made, 1)
    result = made.close()
    assert result.duplicates == 1
    assert result.faults == ["c was given message 1 of p from q again, without a mark"]


def test_messages_of_a_producer_must_come_in_order():
    made = account()
    receive(made, 1, 3, 2, 4)
    result = made.close()
    assert result.disordered == 1
    assert result.faults == ["c was given message 2 of p from q after 3"]


def test_a_mark_does_not_excuse_disorder_at_the_only_consumer_of_a_flow():
    made = account()
    receive(made, 1, 3)
    receive(made, 2, count=2)
    receive(made, 4)
    assert made.close().disordered == 1


def test_where_consumers_share_a_flow_what_came_back_from_one_may_come_late_to_another():
    made = account(is_shared=True)
    receive(made, 1, 4)
    receive(made, 3, consumer="d")
    receive(made, 2, count=2)
    assert made.close().faults == []


def test_what_nobody_sent_must_not_arrive():
    made = account(sent=1)
    receive(made, 1, 2)
    assert made.close().faults == ["c was given message 2 of p from q, which nobody sent there"]


def test_a_refused_message_is_a_fault():
    made = account(sent=1)
    receive(made, 1)
    made.sent("p", 2)
    made.refused("p", 2, "no")
    assert made.close().faults == ["message 2 of p was not taken: no"]


def test_the_longest_gap_is_that_between_two_deliveries_around_a_span():
    made = account(sent=9)
    for number, at in enumerate((0.0, 5.0, 6.0, 6.5, 10.0, 20.0), 1):
        made.received("q", "c", "p", number, 1, at)
    assert made.longest_gap(6.1, 7.0) == 3.5
    assert made.longest_gap(5.5, 6.2) == 1.0
    assert made.longest_gap(0.0, 4.0) == 5.0
    assert made.longest_gap(30.0, 31.0) == 0.0


def test_every_flow_must_have_received_something_newer():
    made = account()
    made.open_flow("other", ["p"])
    receive(made, 1, 2, 3)
    assert not made.has_passed({"p": 2})
    made.received("other", "d", "p", 3, 1, 0.0)
    assert made.has_passed({"p": 2})
