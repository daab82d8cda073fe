import asyncio
import math

import pytest

from alphorn.bus.machine import Durable, Output, Received, Trace
from alphorn.io.driver import ROUNDS_MAX, Driver
from alphorn.model.errors import PeerViolation
from tests.io.loops import on_both_loops, run, until


class Recorder:
    """A machine that answers each input with a trace, and keeps what it was told."""

    def __init__(self) -> None:
        self.inputs: list[object] = []
        self.outputs: list[Output] = []
        self.deadline = math.inf
        self.times: list[float] = []
        self.takes = 0

    def receive(self, item, now):
        if item == Received(b"bad"):
            raise PeerViolation("bad words")
        if item == Received(b"bug"):
            raise AssertionError("an invariant is broken")
        self.inputs.append(item)
        self.outputs.append(Trace("heard", str(len(self.inputs))))

    def on_time(self, now):
        self.times.append(now)
        self.deadline = math.inf
        self.outputs.append(Trace("time", ""))

    def next_deadline(self):
        return self.deadline

    def take_outputs(self):
        self.takes += 1
        taken, self.outputs = self.outputs, []
        return taken

    def describe(self):
        return {}


class Owner:
    """Performs outputs by writing them down."""

    def __init__(self) -> None:
        self.machine = Recorder()
        self.performed: list[object] = []
        self.failures: list[BaseException] = []
        self.driver = Driver(
            self.machine, perform=self.perform, end_turn=self.end_turn, on_failure=self.failures.append
        )

    def perform(self, output):
        self.performed.append(output.details or output.event)

    def end_turn(self):
        self.performed.append("end")


@on_both_loops
def test_all_inputs_of_one_pass_share_one_turn(loop_name):
    async def test():
        owner = Owner()
        owner.driver.receive_all([Received(b"a"), Received(b"b")])
        owner.driver.receive(Durable(1))

        assert owner.performed == []
        await until(lambda: bool(owner.performed))
        assert owner.performed == ["1", "2", "3", "end"]
        assert owner.driver.turns == 1
        owner.driver.close()

    run(test, loop_name)


@on_both_loops
def test_one_timer_follows_the_machine_to_earlier_and_later_deadlines(loop_name):
    async def test():
        owner, loop = Owner(), asyncio.get_running_loop()
        owner.machine.deadline = loop.time() + 3600
        owner.driver.start()
        await until(lambda: "end" in owner.performed)
        owner.machine.deadline = deadline = loop.time() + 0.005
        owner.driver.receive(Durable(1))
        await until(lambda: bool(owner.machine.times))

        assert owner.machine.times[0] >= deadline
        assert "time" in owner.performed
        owner.driver.close()

    run(test, loop_name)


@on_both_loops
def test_a_deadline_between_two_milliseconds_is_waited_for_once(loop_name):
    async def test():
        owner, loop = Owner(), asyncio.get_running_loop()
        asked = []
        deadline = math.ceil(loop.time() * 1000) / 1000 + 0.0104
        owner.machine.deadline = deadline
        owner.machine.next_deadline = lambda: asked.append(loop.time()) or owner.machine.deadline
        owner.driver.start()
        await until(lambda: owner.driver.turns > 0)
        asked.clear()  # the timer is armed
        await until(lambda: bool(owner.machine.times))

        assert owner.machine.times[0] >= deadline
        assert [time for time in asked if time < deadline] == []
        owner.driver.close()

    run(test, loop_name)


def test_a_deadline_that_moved_away_is_kept_at_its_new_time():
    async def test():
        owner, loop = Owner(), asyncio.get_running_loop()
        owner.machine.deadline = loop.time() + 0.002
        owner.driver.start()
        await until(lambda: owner.driver.turns == 1)
        owner.machine.deadline = deadline = loop.time() + 0.02
        await until(lambda: bool(owner.machine.times))

        assert owner.machine.times[0] >= deadline
        owner.driver.close()

    run(test)


def test_an_output_that_causes_inputs_is_answered_in_the_same_turn():
    async def test():
        owner = Owner()

        def perform(output):
            owner.performed.append(output.details)
            if output.details == "1":
                owner.driver.receive(Durable(2))

        owner.perform = perform
        owner.driver = Driver(owner.machine, perform=perform, end_turn=owner.end_turn, on_failure=owner.failures.append)
        owner.driver.receive(Durable(1))
        await until(lambda: "end" in owner.performed)

        assert owner.performed == ["1", "2", "end"]
        owner.driver.close()

    run(test)


def test_outputs_that_never_end_leave_the_loop_its_turns():
    async def test():
        owner = Owner()

        def perform(output):
            owner.driver.receive(Durable(1))

        owner.driver = Driver(owner.machine, perform=perform, end_turn=owner.end_turn, on_failure=owner.failures.append)
        owner.driver.receive(Durable(1))
        await until(lambda: owner.driver.turns == 3)

        assert owner.machine.takes == 3 * ROUNDS_MAX
        owner.driver.close()

    run(test)


def test_a_peers_violation_is_counted_and_the_rest_is_heard():
    async def test():
        owner = Owner()
        owner.driver.receive_all([Received(b"a"), Received(b"bad"), Received(b"b")])
        await until(lambda: "end" in owner.performed)

        assert owner.driver.violations == 1
        assert owner.machine.inputs == [Received(b"a"), Received(b"b")]
        assert not owner.failures
        owner.driver.close()

    run(test)


@pytest.mark.parametrize("where", ["receive", "perform", "end_turn", "take"])
def test_a_bug_anywhere_stops_the_driver_for_good(where):
    async def test():
        owner = Owner()

        def fail(*_):
            raise AssertionError("an invariant is broken")

        if where == "take":
            owner.machine.take_outputs = fail
        owner.driver = Driver(
            owner.machine,
            perform=fail if where == "perform" else owner.perform,
            end_turn=fail if where == "end_turn" else owner.end_turn,
            on_failure=owner.failures.append,
        )
        owner.driver.receive(Received(b"bug" if where == "receive" else b"a"))
        await until(lambda: bool(owner.failures))
        heard = len(owner.machine.inputs)
        owner.driver.receive(Durable(1))

        assert owner.driver.is_closed
        assert len(owner.failures) == 1
        assert len(owner.machine.inputs) == heard

    run(test)


def test_a_closed_driver_performs_nothing_more():
    async def test():
        owner = Owner()
        owner.driver.receive(Durable(1))
        owner.driver.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert owner.performed == []

    run(test)


def test_time_is_given_only_after_what_has_arrived_is_heard():
    async def test():
        owner, machine = Owner(), Recorder()

        def hear():
            driver.receive(Received(b"waited in the socket"))

        driver = Driver(
            machine, perform=owner.perform, end_turn=owner.end_turn, on_failure=owner.failures.append, hear=hear
        )
        machine.deadline = asyncio.get_running_loop().time()
        driver.start()
        await until(lambda: bool(machine.times))

        assert owner.performed == ["1", "time", "end"]
        await asyncio.sleep(0)
        assert driver.turns == 1

    run(test)


def test_a_machine_that_fails_on_what_it_hears_is_given_no_time():
    async def test():
        owner, machine = Owner(), Recorder()
        driver = Driver(
            machine,
            perform=owner.perform,
            end_turn=owner.end_turn,
            on_failure=owner.failures.append,
            hear=lambda: driver.receive(Received(b"bug")),
        )
        machine.deadline = asyncio.get_running_loop().time()
        driver.start()
        await until(lambda: bool(owner.failures))

        assert machine.times == []
        assert owner.performed == []

    run(test)
