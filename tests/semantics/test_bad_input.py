"""What no correct client does: it gets a clear error, and nobody else notices."""

import datetime

import msgspec
import pytest

import alphorn
from alphorn.doors import native
from alphorn.model.conversation import (
    FRAME_BYTES_MAX,
    Acknowledge,
    Administer,
    Browse,
    CloseConsumer,
    Confirmed,
    Consume,
    Delivered,
    Done,
    Failed,
    Hello,
    OpenSession,
    Ping,
    Recover,
    Refused,
    Resolve,
    Return,
    Unsubscribe,
)
from alphorn.model.messages import Flag
from tests.semantics.raw_client import SESSION, RawClient
from tests.semantics.waiting import WAIT_S, bodies, drain, is_quiet, send, take

pytestmark = pytest.mark.processes

pack = msgspec.msgpack.encode

UNREADABLE = {
    "empty": b"",
    "nothing": b"\xc0",
    "no msgpack": b"\xc1",
    "unknown kind": b"\x91\xcd\x03\xe7",
    "no text": b"\x93\x02\x01\xa1\xff",
    "nested": b"\x91" * 100_000,
    "zeros": bytes(100),
    "kind of a server": b"\x91\x65",
}


@pytest.fixture
def raw(cluster):
    with RawClient(cluster.url) as client:
        client.hello()
        yield client


@pytest.fixture(autouse=True)
def _others_go_on(request, cluster):
    """Around every test here a second client, on the same Client Manager as the bad one, works undisturbed."""
    name = f"queue:{request.node.name} of somebody else"
    url = cluster.url.partition(",")[0]
    events = []
    with alphorn.connect(url, on_event=lambda event, detail: events.append(event)) as connection:
        session = connection.session()
        consumer = session.consumer(name)
        send(session, name, ["before"])
        assert bodies(take(consumer, 1)) == ["before"]
        nodes = cluster.nodes
        yield
        send(session, name, ["after"])
        assert bodies(take(consumer, 1)) == ["after"]
        assert cluster.nodes == nodes
        assert events == ["connected"]


# --- names and kinds ---


@pytest.mark.parametrize("name", ["orders", "stack:orders", "Queue:orders", ":orders", "queue"])
def test_an_unknown_kind_of_destination_is_refused(connection, raw, name):
    session = connection.session()
    for wish in (session.producer, session.consumer, session.browser, connection.destinations.create):
        with pytest.raises(alphorn.InvalidDestination, match="names no kind of destination; write queue:"):
            wish(name)
    answer = raw.ask(lambda request: Resolve(request, name))
    assert (answer.error, "names no kind" in answer.reason) == ("InvalidDestination", True)


@pytest.mark.parametrize("name", ["queue:", "queue:" + "x" * 256, "queue:a\nb", "queue:\x00"])
def test_an_impossible_name_is_refused(connection, raw, name):
    with pytest.raises(alphorn.InvalidDestination):
        connection.session().producer(name)
    assert raw.ask(lambda request: Resolve(request, name)).error == "InvalidDestination"
    assert raw.ask(lambda request: Administer(request, "create", name)).error == "InvalidDestination"


@pytest.mark.requirement("WKD-2")
@pytest.mark.parametrize("name", ["queue:_MINE", "topic:_", "topic:_DMQ", "queue:_LOG"])
def test_names_of_the_system_cannot_be_created(connection, raw, name):
    session = connection.session()
    for wish in (session.producer, session.consumer, connection.destinations.create):
        with pytest.raises(alphorn.AccessDenied, match="names that begin with _ belong to the system"):
            wish(name)
    assert raw.ask(lambda request: Resolve(request, name)).error == "AccessDenied"
    assert name not in {known["name"] for known in connection.destinations.list()}


@pytest.mark.requirement("WKD-1", "WKD-3")
def test_destinations_of_the_system_cannot_be_deleted(connection):
    connection.session().browser("queue:_DMQ")
    with pytest.raises(alphorn.AccessDenied, match="cannot be deleted"):
        connection.destinations.delete("queue:_DMQ")


def test_what_does_not_exist_cannot_be_administered(connection, queue):
    for act in (connection.destinations.delete, connection.destinations.purge, connection.destinations.redrive):
        with pytest.raises(alphorn.InvalidDestination, match="there is no"):
            act(queue)


def test_an_unknown_act_is_refused(raw, queue):
    answer = raw.ask(lambda request: Administer(request, "paint", queue))
    assert (answer.error, "nothing that can be done" in answer.reason) == ("Misuse", True)


@pytest.mark.parametrize("policy", [b"\xc1", b"\x81\xa3ttl\xa1x", b"\x81\xabdead_letter\xa1\xff", b"\x91" * 5000])
def test_a_policy_that_cannot_be_read_is_refused(raw, queue, policy):
    answer = raw.ask(lambda request: Administer(request, "create", queue, policy))
    assert (answer.error, "cannot be read" in answer.reason) == ("InvalidDestination", True)
    answer = raw.ask(lambda request: Resolve(request, queue, policy=policy))
    assert (answer.error, "cannot be read" in answer.reason) == ("InvalidDestination", True)


# --- selectors ---


@pytest.mark.requirement("API-8")
@pytest.mark.parametrize(
    "selector", ["colour =", "= 'red'", "colour = 'red", "(a = 1", "a LIKE 5", "a NOT 5", "1 +", "a = 1 b", "a ~ 2"]
)
def test_a_selector_that_does_not_parse_is_refused_everywhere(connection, queue, topic, selector):
    session = connection.session()
    send(session, queue, ["kept"])
    for wish in (
        lambda: session.consumer(queue, selector=selector),
        lambda: session.consumer(topic, selector=selector),
        lambda: session.consumer(topic, selector=selector, subscription="s"),
        lambda: list(session.browser(queue, selector)),
    ):
        with pytest.raises(alphorn.InvalidSelector):
            wish()
    assert bodies(drain(session, queue)) == ["kept"]


def test_a_selector_that_is_too_large_is_refused(connection, queue):
    selector = " OR ".join(f"a = {number}" for number in range(20_000))
    with pytest.raises(alphorn.InvalidSelector):
        connection.session().consumer(queue, selector=selector)
    with pytest.raises(alphorn.InvalidSelector):
        connection.session().consumer(queue, selector="(" * 5000 + "a = 1" + ")" * 5000)


# --- acknowledging what is not held ---


def test_acknowledging_what_is_not_held_is_refused(raw, connection, queue):
    send(connection.session(), queue, ["one", "two"])
    raw.consume(queue)
    delivered = raw.until(Delivered)
    first, last = delivered.position, delivered.position + 1
    for positions in ([last + 1, last + 1], [first, last + 5], [0, 0], [1 << 60, 1 << 61]):
        for kind in (Acknowledge, Return):
            answer = raw.ask(lambda request, kind=kind, wanted=positions: kind(request, 1, wanted))
            assert (answer.error, "does not hold all" in answer.reason) == ("Misuse", True)
    assert isinstance(raw.ask(lambda request: Acknowledge(request, 1, [first, last])), Done)
    answer = raw.ask(lambda request: Acknowledge(request, 1, [first, last]))
    assert (answer.error, "does not hold all" in answer.reason) == ("Misuse", True)
    assert drain(connection.session(), queue) == []


def test_acknowledging_what_another_consumer_holds_is_refused(raw, connection, queue):
    session = connection.session(ack="individual")
    send(session, queue, ["theirs"])
    consumer = session.consumer(queue)
    [message] = take(consumer, 1)
    raw.consume(queue)
    position = message._arrival.position
    assert raw.ask(lambda request: Acknowledge(request, 1, [position, position])).error == "Misuse"
    session.recover()
    assert [(m.body, m.delivery_count) for m in take(consumer, 1)] == [("theirs", 2)]


def test_recovering_what_is_not_held_is_refused(raw, connection, queue):
    send(connection.session(), queue, ["one"])
    raw.consume(queue)
    position = raw.until(Delivered).position
    answer = raw.ask(lambda request: Recover(request, 1, [position, position + 1], []))
    assert (answer.error, "does not hold all" in answer.reason) == ("Misuse", True)
    assert isinstance(raw.ask(lambda request: Recover(request, 1, [position, position], [])), Done)
    again = raw.until(Delivered)
    assert (again.position, again.delivery_count) == (position, 2)
    raw.say(Recover(90, 1, [position], []))
    assert "positions come in pairs" in raw.sent_away().reason


def test_a_consumer_that_is_not_open_cannot_be_used(raw):
    for make in (
        lambda request: Acknowledge(request, 9, [1, 1]),
        lambda request: Return(request, 9, [1, 1]),
        lambda request: Recover(request, 9, [1, 1], []),
        lambda request: CloseConsumer(request, 9),
    ):
        answer = raw.ask(make)
        assert (answer.error, answer.reason) == ("Misuse", "consumer 9 is not open")


@pytest.mark.parametrize("positions", [[1], [2, 1], [1, 2, 3], [-3, -1]])
def test_positions_that_are_no_pairs_end_the_connection(raw, queue, positions):
    raw.consume(queue)
    raw.say(Acknowledge(1, 1, positions))
    assert "positions come in pairs" in raw.sent_away().reason


@pytest.mark.parametrize("held", [[1], [5, 3], [-7, -2], [1 << 60, 1 << 62], [3, 4, 1, 2, 2, 9]])
def test_a_consumer_that_claims_impossible_positions_gets_none_of_them(raw, connection, queue, held):
    place = raw.place_of(queue)
    raw.say(Consume(77, SESSION, 1, place, 10, held=held))
    raw.say(Ping())
    while (frame := raw.next_frame()) is not None and type(frame).__name__ not in ("Pong", "Goodbye"):
        assert isinstance(frame, Done | Failed)
    send(connection.session(), queue, ["mine"])
    if type(frame).__name__ == "Pong":
        assert raw.until(Delivered).position == 1
    else:
        assert bodies(drain(connection.session(), queue)) == ["mine"]


# --- frames ---


def test_an_oversized_frame_ends_the_connection_with_the_reason(raw):
    raw.write((FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\x00" * 1000)
    goodbye = raw.sent_away()
    assert goodbye.error == "PeerViolation"
    assert f"a frame of {FRAME_BYTES_MAX + 1} bytes was announced" in goodbye.reason


def test_a_stranger_says_little_before_it_is_welcome(cluster):
    with RawClient(cluster.url) as client:
        client.write((FRAME_BYTES_MAX).to_bytes(4, "big") + b"\x00")
        assert f"a frame of {FRAME_BYTES_MAX} bytes was announced" in client.sent_away().reason


@pytest.mark.cluster_only
def test_a_stranger_that_never_says_hello_is_sent_away(cluster):
    with RawClient(cluster.url) as client:
        client.write(b"\x00\x00")
        assert "begins with hello" in client.sent_away().reason


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_frame_that_cannot_be_read_ends_the_connection_with_the_reason(raw, name):
    body = UNREADABLE[name]
    raw.write(len(body).to_bytes(4, "big") + body)
    goodbye = raw.sent_away()
    assert (goodbye.error, "cannot be read" in goodbye.reason) == ("PeerViolation", True)


def test_what_comes_behind_a_broken_frame_is_not_heard(raw, connection, queue):
    place = raw.place_of(queue)
    raw.write(b"\x00\x00\x00\x01\xc1" + native.encode(OpenSession(5)))
    raw.publish(place, pack([("late",)]))
    raw.sent_away()
    assert is_quiet(connection.session().consumer(queue))


def test_a_connection_begins_with_hello_in_a_version_that_is_spoken(cluster):
    with RawClient(cluster.url) as client:
        client.say(Ping())
        assert "begins with hello" in client.sent_away().reason
    with RawClient(cluster.url) as client:
        client.say(Hello(99))
        assert "version 99 of the protocol is not spoken here" in client.sent_away().reason
    with RawClient(cluster.url) as client:
        client.say(Hello(native.VERSION, connection=b"short"))
        assert "has 16 bytes" in client.sent_away().reason


def test_a_client_says_nothing_between_hello_and_welcome_and_has_an_id_of_bounded_length(cluster):
    with RawClient(cluster.url) as client:
        client.write(native.encode(Hello(native.VERSION, client_id="hasty")) + native.encode(Ping()))
        assert "nothing between hello and welcome" in client.sent_away().reason
    with RawClient(cluster.url) as client:
        client.say(Hello(native.VERSION, client_id="x" * 256))
        assert "at most 255 characters" in client.sent_away().reason


def test_hello_is_said_once(raw):
    raw.say(Hello(native.VERSION))
    assert "has said hello before" in raw.sent_away().reason


def test_another_protocol_is_sent_away(cluster):
    with RawClient(cluster.url) as client:
        client.write(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")
        assert "bytes was announced" in client.sent_away().reason


# --- batches ---


def broken_batches():
    return {
        "no count": (b"", {}),
        "another count": (pack([("a",), ("b",)]), {"count": 3}),
        "count of nothing": (pack([]), {"count": 0}),
        "too many": (pack([("a",)]), {"count": 100_000}),
        "cut off": (pack([("abc",)])[:-1], {}),
        "no list": (pack({"a": 1}), {}),
        "bytes behind it": (pack([("a",)]) + b"\x00", {}),
        "nested too deep": (b"\x91" + b"\x91" * 100_000 + b"\xc0", {}),
        "messages that are none": (pack([1]), {"flags": int(Flag.PRIORITY)}),
        "priority that is none": (pack([("a", None, "high")]), {"flags": int(Flag.PRIORITY)}),
        "properties with lists": (pack([("a", {"x": [1]})]), {"flags": int(Flag.PROPERTIES)}),
        "too large": (pack([(bytes(4 << 20),)]), {}),
        "another session": (pack([("a",)]), {"session": 99}),
        "number of no producer": (pack([("a",)]), {"producer": 1 << 40}),
        "negative producer": (pack([("a",)]), {"producer": -1}),
        "counter after itself": (pack([("a",)]), {"after": 1}),
        "counter after nothing": (pack([("a",)]), {"after": -2}),
        "place of no channel": (pack([("a",)]), {"place": 1 << 50}),
        "negative place": (pack([("a",)]), {"place": -1}),
    }


@pytest.mark.parametrize("name", broken_batches())
def test_a_broken_batch_ends_the_connection_with_the_reason(raw, connection, queue, name):
    blob, fields = broken_batches()[name]
    place = raw.place_of(queue)
    raw.publish(**{"place": place, "blob": blob, **fields})
    goodbye = raw.sent_away()
    assert goodbye.error == "PeerViolation"
    assert goodbye.reason
    assert bodies(connection.session().browser(queue)) == []


@pytest.mark.parametrize("counter", [0, -5, (1 << 64) - 1, 1 << 62])
def test_counters_that_cannot_be_are_refused(raw, connection, queue, counter):
    raw.publish(raw.place_of(queue), pack([("a",)]), counter=counter)
    answer = raw.next_frame()
    assert isinstance(answer, Refused) or answer.error == "PeerViolation"
    assert bodies(connection.session().browser(queue)) == []


def test_a_batch_after_a_gap_in_the_counters_is_refused_because_one_before_it_is_missing(raw, connection, queue):
    place = raw.place_of(queue)
    raw.publish(place, pack([("a",)]))
    raw.publish(place, pack([("c",)]), counter=3)
    assert raw.until(Refused).error == "Unavailable"
    assert bodies(drain(connection.session(), queue)) == ["a"]


@pytest.mark.parametrize("timestamp", [-1, -(1 << 63), 1 << 62, (1 << 64) - 1])
def test_a_timestamp_that_no_clock_shows_harms_nobody(raw, connection, topic, timestamp):
    connection.destinations.create(topic, retain=3600)
    raw.publish(raw.place_of(topic), pack([("odd",)]), timestamp=timestamp)
    raw.until(Confirmed)
    send(connection.session(), topic, ["even"])
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    for start in ("earliest", past):
        consumer = connection.session().consumer(topic, start=start, selector="JMSTimestamp <> 5")
        assert bodies(take(consumer, 2)) == ["odd", "even"]


def test_sending_to_a_place_that_never_was_is_refused(raw):
    raw.publish(123_456_789, pack([("a",)]))
    refused = raw.until(Refused)
    assert refused.error == "InvalidDestination"


@pytest.mark.parametrize("blob", [pack([5]), pack([("fine",), {"a": 1}]), b"\x91\x91\xa1\xff"])
def test_messages_that_nobody_can_read_do_not_stop_their_consumers(raw, connection, queue, topic, blob):
    """Goal: consumers go on behind spoilt messages. Method: batches of valid form whose messages are none."""
    session = connection.session()
    subscribed = session.consumer(topic)
    choosy = session.consumer(topic, selector="JMSPriority = 4")
    count = blob[0] & 0x0F
    raw.publish(raw.place_of(queue), blob, count=count)
    raw.publish(raw.place_of(topic), blob, count=count, producer=2)
    raw.ask(lambda request: Resolve(request, queue))
    send(session, queue, ["good"])
    send(session, topic, ["good"])
    assert bodies(list(session.browser(queue, "JMSPriority = 4")))[-1:] == ["good"]
    assert bodies(take(session.consumer(queue), 1)) == ["good"]
    assert bodies(take(subscribed, 1)) == ["good"]
    assert take(choosy, 1)[0].body == "good"


# --- the rest of the conversation ---


def test_a_consumer_needs_an_open_session_and_a_number_of_its_own(raw, cluster, queue):
    raw.consume(queue)
    place = raw.place_of(queue)
    raw.say(Consume(50, SESSION, 1, place, 10))
    assert "is open already" in raw.sent_away().reason
    for fields in ({"session": 9}, {"consumer": 1 << 40}, {"consumer": -1}, {"place": -1}, {"place": 1 << 60}):
        with RawClient(cluster.url) as client:
            client.hello()
            given = {"session": SESSION, "consumer": 2, "place": place, "prefetch": 10, **fields}
            client.say(Consume(51, **given))
            assert client.sent_away().error == "PeerViolation"


@pytest.mark.parametrize("prefetch", [0, -5, 1 << 62])
def test_an_impossible_prefetch_harms_nobody(raw, connection, queue, prefetch):
    raw.consume(queue, prefetch=prefetch)
    send(connection.session(), queue, ["one"])
    assert raw.until(Delivered).position == 1


def test_a_destination_that_is_gone_cannot_be_consumed_or_browsed(raw, connection, queue):
    place = raw.place_of(queue)
    connection.destinations.delete(queue)
    for make in (
        lambda request: Consume(request, SESSION, 1, place, 10),
        lambda request: Browse(request, place, "", 0, 10),
    ):
        answer = raw.ask(make)
        assert answer.error == "InvalidDestination"
        assert answer.reason


def test_impossible_places_to_browse_from_find_nothing_or_all(raw, connection, queue):
    send(connection.session(), queue, ["one"])
    place = raw.place_of(queue)
    for start, maximum in ((-5, 10), (1 << 62, 10), (0, -1), (0, 1 << 62)):
        answer = raw.ask(lambda request, a=start, b=maximum: Browse(request, place, "", a, b))
        assert isinstance(answer, Done | Failed)


def test_a_client_cannot_end_a_subscription_of_another(raw, connect, topic):
    consumer = connect(client_id=topic).session().consumer(topic, subscription="theirs")
    assert raw.ask(lambda request: Unsubscribe(request, "theirs")).error == "InvalidDestination"
    send(connect().session(), topic, ["still"])
    assert bodies(take(consumer, 1)) == ["still"]


def test_a_start_that_cannot_be_is_refused(raw, topic):
    place = raw.place_of(topic)
    for fields in ({"start": -9}, {"start_ms": -1}):
        answer = raw.ask(lambda request, given=fields: Consume(request, SESSION, 5, place, 10, **given))
        assert (answer.error, "a subscription starts with" in answer.reason) == ("Misuse", True)


def test_choices_that_contradict_each_other_are_refused_by_the_library(connection, queue, topic):
    session = connection.session()
    for wish, reason in (
        (lambda: session.consumer(queue, subscription="s"), "are for topics"),
        (lambda: session.consumer(queue, start="earliest"), "are for topics"),
        (lambda: session.consumer(topic, shared=True), "needs a name"),
        (lambda: session.consumer(topic, start="yesterday"), "start is 'yesterday'"),
        (lambda: session.consumer(topic, prefetch=0), "prefetch is 0"),
        (lambda: session.producer(queue, priority=11), "priority is 11"),
        (lambda: session.producer(queue).send("x", ttl=-1), "ttl is -1"),
        (lambda: session.producer().send("x"), "has no destination"),
        (lambda: session.consumer(5), "a destination is a str"),
        (lambda: session.commit(), "not transacted"),
    ):
        with pytest.raises(alphorn.Misuse, match=reason):
            wish()
    session.producer(queue).send("fine").result(WAIT_S)
