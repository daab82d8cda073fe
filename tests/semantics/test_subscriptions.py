"""Topics and their subscriptions: volatile, durable and shared ones, by the rules of JMS."""

import pytest

import alphorn
from tests.semantics.waiting import bodies, is_quiet, send, take

pytestmark = pytest.mark.processes


@pytest.mark.requirement("API-3", "MM-3")
def test_every_subscriber_gets_every_message_from_then_on(connection, other, topic):
    session = connection.session()
    send(session, topic, ["before"])
    consumers = [session.consumer(topic), session.consumer(topic), other.session().consumer(topic)]
    send(session, topic, ["one", "two"])
    assert [bodies(take(consumer, 2)) for consumer in consumers] == [["one", "two"]] * 3


@pytest.mark.requirement("API-3", "API-2")
def test_each_message_of_a_queue_goes_to_one_consumer(connection, other, queue):
    send(connection.session(), queue, range(20))
    first = connection.session(ack="individual").consumer(queue, prefetch=10)
    second = other.session(ack="individual").consumer(queue, prefetch=10)
    assert sorted(bodies(take(first, 10)) + bodies(take(second, 10))) == list(range(20))


def test_a_volatile_subscription_ends_with_its_consumer(connection, topic):
    session = connection.session()
    session.consumer(topic).close()
    send(session, topic, ["missed"])
    consumer = session.consumer(topic)
    send(session, topic, ["heard"])
    assert bodies(take(consumer, 1)) == ["heard"]


@pytest.mark.requirement("API-2")
def test_a_resumed_durable_subscription_gets_what_it_missed(connect, connection, topic):
    with connect(client_id=topic) as client:
        consumer = client.session().consumer(topic, subscription="news")
        send(connection.session(), topic, ["one"])
        assert bodies(take(consumer, 1)) == ["one"]
    send(connection.session(), topic, ["two", "three"])
    with connect(client_id=topic) as client:
        consumer = client.session().consumer(topic, subscription="news")
        assert [(m.body, m.delivery_count) for m in take(consumer, 2)] == [("two", 1), ("three", 1)]
        send(connection.session(), topic, ["four"])
        assert bodies(take(consumer, 1)) == ["four"]


def test_durable_subscriptions_belong_to_their_client(connect, topic):
    one, two = connect(client_id=f"{topic} 1").session(), connect(client_id=f"{topic} 2").session()
    first, second = one.consumer(topic, subscription="same"), two.consumer(topic, subscription="same")
    send(one, topic, ["both"])
    assert bodies(take(first, 1)) == bodies(take(second, 1)) == ["both"]


def test_a_second_active_consumer_of_a_durable_subscription_is_refused(connect, topic):
    client = connect(client_id=topic)
    session = client.session()
    consumer = session.consumer(topic, subscription="news")
    for refused in (session, client.session()):
        with pytest.raises(alphorn.Misuse, match="has an active consumer"):
            refused.consumer(topic, subscription="news")
    send(session, topic, ["still here"])
    assert bodies(take(consumer, 1)) == ["still here"]
    consumer.close()
    send(session, topic, ["next"])
    assert bodies(take(client.session().consumer(topic, subscription="news"), 1)) == ["next"]


def test_another_selector_begins_the_durable_subscription_anew(connect, topic):
    session = connect(client_id=topic).session()
    session.consumer(topic, subscription="news", selector="colour = 'red'").close()
    send(session, topic, ["red"], properties={"colour": "red"})
    consumer = session.consumer(topic, subscription="news", selector="colour = 'blue'")
    send(session, topic, ["red again"], properties={"colour": "red"})
    send(session, topic, ["blue"], properties={"colour": "blue"})
    assert bodies(take(consumer, 1)) == ["blue"]
    assert is_quiet(consumer)


def test_another_selector_is_refused_while_the_durable_subscription_is_in_use(connect, topic):
    client = connect(client_id=topic)
    consumer = client.session().consumer(topic, subscription="news", selector="colour = 'red'")
    with pytest.raises(alphorn.Misuse, match="has an active consumer"):
        client.session().consumer(topic, subscription="news", selector="colour = 'blue'")
    send(client.session(), topic, ["red"], properties={"colour": "red"})
    assert bodies(take(consumer, 1)) == ["red"]


def test_unsubscribing_lets_go_of_what_was_not_consumed(connect, topic):
    session = connect(client_id=topic).session()
    session.consumer(topic, subscription="news").close()
    send(session, topic, ["let go"])
    session.unsubscribe("news")
    consumer = session.consumer(topic, subscription="news")
    send(session, topic, ["new"])
    assert bodies(take(consumer, 1)) == ["new"]


def test_unsubscribing_is_refused_while_the_subscription_is_in_use(connect, topic):
    client = connect(client_id=topic)
    consumer = client.session().consumer(topic, subscription="news")
    with pytest.raises(alphorn.Misuse, match="close it first"):
        client.session().unsubscribe("news")
    send(client.session(), topic, ["still here"])
    assert bodies(take(consumer, 1)) == ["still here"]


def test_unsubscribing_what_does_not_exist_is_an_error(connect, topic):
    session = connect(client_id=topic).session()
    with pytest.raises(alphorn.InvalidDestination, match="no subscription named 'nothing'"):
        session.unsubscribe("nothing")
    session.consumer(topic, subscription="news").close()
    session.unsubscribe("news")
    with pytest.raises(alphorn.InvalidDestination, match="no subscription named 'news'"):
        session.unsubscribe("news")


@pytest.mark.parametrize("durable", [True, False])
def test_consumers_of_a_shared_subscription_share_its_messages(connect, topic, durable):
    one, two = connect(), connect()
    options = {"subscription": topic, "shared": True, "durable": durable, "prefetch": 10}
    first = one.session(ack="individual").consumer(topic, **options)
    second = two.session(ack="individual").consumer(topic, **options)
    send(one.session(), topic, range(20))
    assert sorted(bodies(take(first, 10)) + bodies(take(second, 10))) == list(range(20))


def test_a_shared_durable_subscription_keeps_messages_while_nobody_is_there(connect, topic):
    session = connect().session()
    options = {"subscription": topic, "shared": True}
    session.consumer(topic, **options).close()
    send(session, topic, ["kept"])
    assert bodies(take(connect().session().consumer(topic, **options), 1)) == ["kept"]


def test_a_shared_volatile_subscription_ends_with_its_last_consumer(connect, topic):
    one, two = connect().session(), connect().session()
    options = {"subscription": topic, "shared": True, "durable": False}
    first, second = one.consumer(topic, **options), two.consumer(topic, **options)
    first.close()
    send(one, topic, ["for the one who stayed"])
    assert bodies(take(second, 1)) == ["for the one who stayed"]
    second.close()
    send(one, topic, ["for nobody"])
    third = one.consumer(topic, **options)
    send(one, topic, ["new"])
    assert bodies(take(third, 1)) == ["new"]


@pytest.mark.parametrize("durable", [True, False])
def test_sharing_with_another_selector_is_refused_while_the_subscription_is_in_use(connect, topic, durable):
    one, two = connect().session(), connect().session()
    options = {"subscription": topic, "shared": True, "durable": durable}
    consumer = one.consumer(topic, selector="colour = 'red'", **options)
    with pytest.raises(alphorn.Misuse, match="another topic or selector"):
        two.consumer(topic, selector="colour = 'blue'", **options)
    send(one, topic, ["red"], properties={"colour": "red"})
    assert bodies(take(consumer, 1)) == ["red"]


def test_a_name_is_shared_or_not(connect, topic):
    client = connect(client_id=topic)
    session = client.session()
    session.consumer(topic, subscription="news").close()
    with pytest.raises(alphorn.Misuse, match="is not shared"):
        session.consumer(topic, subscription="news", shared=True)


@pytest.mark.parametrize("subscription", [None, "news"])
def test_no_local_leaves_out_what_the_connection_itself_sent(connect, topic, subscription):
    mine, theirs = connect(client_id=topic), connect()
    consumer = mine.session().consumer(topic, no_local=True, subscription=subscription)
    everything = mine.session().consumer(topic)
    send(mine.session(), topic, ["mine"])
    send(theirs.session(), topic, ["theirs"])
    assert bodies(take(consumer, 1)) == ["theirs"]
    assert is_quiet(consumer)
    assert bodies(take(everything, 2)) == ["mine", "theirs"]


def test_a_deleted_topic_closes_its_consumers_and_says_so(connection, other, topic):
    consumer = other.session().consumer(topic)
    connection.destinations.delete(topic)
    with pytest.raises(alphorn.InvalidDestination, match="was deleted"):
        consumer.receive(timeout=20)
    send(connection.session(), topic, ["to a new topic"])
    assert topic in {known["name"] for known in connection.destinations.list()}
