"""How a program joins, stays, and leaves."""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import alphorn
from alphorn.client import membership
from alphorn.io import internal_stream
from alphorn.model.errors import AccessDenied, Error, Misuse, Unavailable
from tests.client.shells import Call
from tests.cluster.conftest import Join
from tests.cluster.serving import PATIENCE_S, Heard, Serving


def test_a_name_that_is_taken_is_refused(join: Join, pair: Serving) -> None:
    join(pair.url, name="worker")
    with pytest.raises(Misuse, match="the name worker is taken by process"):
        join(pair.url, name="worker")


def test_a_name_is_free_again_when_its_process_has_left(join: Join, pair: Serving) -> None:
    for _ in range(3):
        join(pair.url, name="worker").close()


def test_who_comes_just_before_the_name_is_free_is_let_in(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    # Servers hear at different moments that a process has left, and the next one of that name may be there before.
    first = alphorn.cluster.join(serving.url, name="worker")
    second = Call(lambda: alphorn.cluster.join(serving.url, name="worker"))
    while "internal_connection_refused" not in caplog.text:
        first.others()
    first.close()
    second.result().close()


def test_what_a_client_manager_refuses_is_raised(join: Join, serving: Serving) -> None:
    serving.refusal = Misuse("mm1 is a message manager of this cluster; join under another name")
    with pytest.raises(Misuse, match="mm1 is a message manager of this cluster; join under another name"):
        join(serving.url, name="mm1")


def test_message_servers_refuse_the_name_of_a_node_too(join: Join, serving: Serving) -> None:
    with pytest.raises(Misuse, match="mm1 is the name of a node"):
        join(serving.url, name="mm1")


@pytest.mark.parametrize("name", ["", " ", "a\n", "x" * 201, 7, None, b"a", "\ud800"])
def test_a_name_that_is_none_is_refused_at_once(join: Join, name: object) -> None:
    with pytest.raises(Misuse, match="name"):
        join("alphorn://127.0.0.1:1", name=name)


def test_where_no_message_server_answers_that_is_told(join: Join, serving: Serving) -> None:
    serving.stop("ms1")
    with pytest.raises(Unavailable, match=r"no message server let worker in within 0.3 s \(ms1 at 127"):
        join(serving.url, name="worker", connect_timeout=0.3)


def test_where_no_client_manager_answers_that_is_told(join: Join) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        join("alphorn://127.0.0.1:1", name="worker", connect_timeout=0.2)


def test_credentials_are_those_of_connect(join: Join, serving: Serving) -> None:
    with pytest.raises(AccessDenied, match="user me may not connect"):
        join(serving.url, name="worker", user="me", password="wrong")
    assert serving.asked == []


def test_the_port_of_a_cluster_with_a_key_opens_for_a_ticket(join: Join, tmp_path: Path) -> None:
    heard = Heard()
    with Serving(tmp_path, count=2, is_sealed=True) as serving:
        one, two = join(serving.url, name="one"), join(serving.url, name="two")
        two.on_message(heard)
        one.tell("two", "sealed")
        assert heard.next().body == "sealed"
        one.close()
        two.close()


def test_a_ticket_of_another_name_opens_nothing(join: Join, tmp_path: Path) -> None:
    with Serving(tmp_path, is_sealed=True) as serving:
        serving.make_ticket = lambda name: internal_stream.make_ticket("somebody")
        with pytest.raises(AccessDenied, match="the ticket is for somebody, and not for one"):
            join(serving.url, name="one")


def test_a_ticket_that_is_refused_is_asked_for_again(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "LOOK_S", 0.05)
    with Serving(tmp_path, is_sealed=True) as serving:
        process, heard = join(serving.url, name="one"), Heard()
        process.on_message(heard)
        serving.stop("ms1")
        read_ticket, expired = internal_stream.read_ticket, internal_stream.make_ticket

        def read_new_ones(ticket: bytes) -> str:
            if not ticket.endswith(b"new"):
                raise AccessDenied("the ticket of one has expired")
            return read_ticket(ticket[:-3])

        monkeypatch.setattr(internal_stream, "read_ticket", read_new_ones)
        serving.make_ticket = lambda name: expired(name) + b"new"
        serving.serve("ms1")
        two = join(serving.url, name="two")
        _until_there(two, "one")
        two.tell("one", "again")
        assert heard.next().body == "again"
        process.close()


@pytest.mark.requirement("CCM-2")
def test_both_servers_away_is_unavailable_and_all_are_back_by_themselves(join: Join, pair: Serving) -> None:
    heard = Heard()
    one, two = join(pair.url, name="one"), join(pair.url, name="two")
    two.on_message(heard)
    for name in ("ms1", "ms2"):
        pair.stop(name)
    _until_joined(one, two, count=0)
    with pytest.raises(Unavailable, match="no message server is there"):
        one.tell("two", "lost")
    with pytest.raises(Unavailable):
        one.tell_others("lost")
    with pytest.raises(Unavailable):
        one.events.recent()
    pair.serve("ms2")
    _until_there(one, "two")
    one.tell("two", "found")
    assert heard.next().body == "found"


@pytest.mark.requirement("CCM-5")
def test_one_server_after_the_other_dies_and_nothing_acknowledged_is_lost_or_doubled(join: Join, pair: Serving) -> None:
    heard, names = Heard(), ["ms1", "ms2"]
    one, two = join(pair.url, name="one"), join(pair.url, name="two")
    two.on_message(heard)
    for number in range(40):
        if number % 10 == 5:
            pair.stop(names[number // 10 % 2])
        _tell(one, "two", number)
        if number % 10 == 5:
            pair.serve(names[number // 10 % 2])
            _until_joined(one, two)
    assert [heard.next().body for _ in range(40)] == list(range(40))


def test_who_has_left_can_ask_nothing_more(join: Join, serving: Serving) -> None:
    process = join(serving.url, name="worker")
    process.close()
    process.close()
    process.__exit__(None, None, None)
    asks: list[Any] = [
        lambda: process.tell("two", 1),
        lambda: process.tell_others(1),
        lambda: process.on_message(print),
        lambda: process.events.on("node_up", print),
        process.events.recent,
        process.others,
    ]
    for ask in asks:
        with pytest.raises(Misuse, match="worker has left the cluster; join again"):
            ask()
    assert repr(process) == "<WorkProcess worker of no message server>"


def test_who_leaves_while_it_waits_does_not_know_the_outcome(serving: Serving) -> None:
    async def leave() -> Error:
        async with alphorn.aio.join_cluster(serving.url, name="worker") as process:
            telling = asyncio.ensure_future(process.tell("cm1", 1))
            await asyncio.sleep(0)
        with pytest.raises(alphorn.UnknownOutcome) as raised:
            await telling
        return raised.value

    assert "left the cluster" in str(asyncio.run(leave()))


def test_with_leaves_at_its_end(serving: Serving) -> None:
    with alphorn.cluster.join(serving.url, name="one") as process:
        assert process.others() == []
    with pytest.raises(Misuse, match="one has left"):
        process.others()


def test_with_leaves_when_its_body_fails(serving: Serving) -> None:
    heard = Heard()
    with alphorn.cluster.join(serving.url, name="listener") as listener:
        listener.events.on("node_down", heard)
        with pytest.raises(ZeroDivisionError), alphorn.cluster.join(serving.url, name="one"):
            raise ZeroDivisionError
        assert heard.next().node == "one"


def test_a_function_may_leave(join: Join, serving: Serving) -> None:
    left = Heard()
    one, two = join(serving.url, name="one"), join(serving.url, name="two")
    inner = getattr(two, "inner", two)

    def leave(message: Any) -> None:
        inner.close()
        left(message)

    async def leave_soon(message: Any) -> None:
        await inner.close()
        left(message)

    two.on_message(leave if inner is two else leave_soon)
    one.tell("two", "go")
    assert left.next().body == "go"
    with pytest.raises(Misuse, match="two has left"):
        two.tell("one", "gone")


def test_what_was_taken_just_before_leaving_is_acknowledged(serving: Serving) -> None:
    async def main() -> None:
        async with alphorn.aio.join_cluster(serving.url, name="one") as one:
            for _ in range(10):
                two = await alphorn.aio.join_cluster(serving.url, name="two")
                two.on_message(lambda message, two=two: two.close())
                await one.tell("two", "go")

    asyncio.run(main())


def test_a_forked_child_must_join_itself(serving: Serving) -> None:
    with alphorn.cluster.join(serving.url, name="parent") as process:
        child = os.fork()
        if not child:
            code = 1
            try:
                process.tell("other", 1)
            except Misuse as error:
                process.close()
                code = 0 if "join again in the child" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert process.others() == []


def test_coroutine_functions_are_for_the_form_that_awaits_them(serving: Serving) -> None:
    async def function(argument: Any) -> None:
        """Never runs."""

    with alphorn.cluster.join(serving.url, name="worker") as process:
        with pytest.raises(Misuse, match=r"is to be awaited; join with alphorn\.aio\.join_cluster"):
            process.on_message(function)
        with pytest.raises(Misuse, match="is to be awaited"):
            process.events.on("node_up", function)


def test_coroutines_are_awaited_one_after_the_other(serving: Serving) -> None:
    async def main() -> list[int]:
        done: list[int] = []
        is_over = asyncio.Event()

        async def function(message: Any) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            done.append(message.body)
            if len(done) == 20:
                is_over.set()

        async with (
            alphorn.aio.join_cluster(serving.url, name="one") as one,
            alphorn.aio.join_cluster(serving.url, name="two") as two,
        ):
            await two.on_message(function)  # may be awaited
            await asyncio.gather(*(one.tell("two", number) for number in range(20)))
            await is_over.wait()
        return done

    assert asyncio.run(main()) == list(range(20))


def test_nothing_is_left_of_who_has_left(serving: Serving) -> None:
    before = threading.active_count()
    for _ in range(3):
        alphorn.cluster.join(serving.url, name="worker").close()
    with pytest.raises(Misuse):
        alphorn.cluster.join(serving.url, name="mm1")
    for thread in threading.enumerate():
        if thread.name == "alphorn-functions":
            thread.join(60)
    assert threading.active_count() == before


def _tell(process: Any, name: str, body: object) -> None:
    """Says it again while nothing was sent."""
    while True:
        try:
            process.tell(name, body, timeout=60)
        except Unavailable:
            continue
        return


def _until_there(process: Any, name: str) -> None:
    """Waits until somebody is there."""
    deadline = time.monotonic() + PATIENCE_S
    while name not in process.others():
        assert time.monotonic() < deadline, f"{name} has not come"


def _until_joined(*processes: Any, count: int = 2) -> None:
    """Waits until these know that they have so many message servers."""
    for process in processes:
        inner = getattr(process, "inner", process)
        deadline = time.monotonic() + PATIENCE_S
        while len(inner._membership._runner.half.joined) != count:
            assert time.monotonic() < deadline, f"{process} has not joined {count} servers"
