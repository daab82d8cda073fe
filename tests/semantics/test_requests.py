"""Questions and answers."""

import threading

import pytest

from tests.semantics.waiting import WAIT_S, Gathered, send, take

pytestmark = pytest.mark.processes


def answer(session, queue):
    """Answers every question with its own body in capitals, until its connection ends."""
    producer = session.producer()

    def reply(message):
        producer.send(
            message.body.upper(), destination=message.reply_to, correlation_id=message.correlation_id, wait=True
        )

    session.consumer(queue).listen(reply)


def test_a_request_gets_its_answer(connection, other, queue):
    answer(other.session(), queue)
    session = connection.session()
    found = session.request(queue, "hello", timeout=WAIT_S)
    assert found.body == "HELLO"
    assert session.request(queue, "again", timeout=WAIT_S, properties={"k": 1}).body == "AGAIN"


def test_requests_of_many_threads_get_their_own_answers(connection, other, queue):
    answer(other.session(), queue)
    session = connection.session()
    found = Gathered()

    def ask(word):
        found((word, session.request(queue, word, timeout=WAIT_S).body))

    threads = [threading.Thread(target=ask, args=(f"word {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(found.messages) == [(f"word {number}", f"WORD {number}") for number in range(8)]


def test_a_request_that_nobody_answers_ends_in_time(connection, other, queue):
    session = connection.session()
    with pytest.raises(TimeoutError, match="no answer came from"):
        session.request(queue, "anybody?", timeout=0.1)
    answer(other.session(), queue)
    assert session.request(queue, "now?", timeout=WAIT_S).body == "NOW?"


def test_reply_to_names_any_destination(connection, queue):
    replies = f"{queue} replies"
    with connection.session() as session:
        send(session, queue, ["question"], reply_to=replies, correlation_id="7")
        [question] = take(session.consumer(queue), 1)
        assert (question.reply_to, question.correlation_id) == (replies, "7")
        send(session, question.reply_to, ["answer"], correlation_id=question.correlation_id)
        [found] = take(session.consumer(replies, selector="JMSCorrelationID = '7'"), 1)
        assert found.body == "answer"
