"""A small world in which everything happens to a channel: messages, writers, transactions, destinations that move."""

from random import Random

from alphorn.message_manager.engine import Engine
from alphorn.model.commands import (
    Acknowledge,
    AnyCommand,
    Arrive,
    CreateDestination,
    Entry,
    Expect,
    Move,
    MoveStage,
    SetPolicy,
    Settle,
    TransactionCommit,
    TransactionDecide,
    TransactionFinish,
    TransactionPrepare,
    TransactionSettle,
    key_of,
)
from alphorn.model.destinations import Destination, DestinationKind, Policy
from tests.message_manager.bench import BOB, batch, subscription
from tests.message_manager.test_determinism import CONNECTIONS
from tests.message_manager.test_staging_determinism import WritingStream
from tests.message_manager.travel import ATTEMPT, Side, Travel

ELSEWHERE = 2  # another channel


class World(WritingStream):
    """Writers, and all that is missing there."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.transactions: dict[bytes, int] = {}
        self.trips = 0
        self.trip: Travel | None = None
        self.coming: list[AnyCommand] = []

    def entry(self, engine: Engine) -> Entry:
        draw = self.random.random()
        if draw < 0.1:
            return self.transaction(engine)
        if draw < 0.3:
            return Entry([self.come(engine)])
        return super().entry(engine)

    def command(self, engine: Engine) -> AnyCommand:
        draw = self.random.random()
        if draw < 0.05:
            return self.leave(engine)
        return self.end_transaction(engine) if draw < 0.12 else super().command(engine)

    def transaction(self, engine: Engine) -> Entry:
        """A transaction, over this channel or several."""
        random = self.random
        session = key_of(random.choice(CONNECTIONS[:3]), 7)
        counter = self.transactions[session] = self.transactions.get(session, 0) + random.choice([0, 1, 1])
        makers = [self.publish, self.acknowledge, self.consume, self.consume, self.consume]
        members = [random.choice(makers)(engine) for _ in range(random.randint(1, 3))]
        if random.random() < 0.3:
            return Entry([TransactionCommit(session, counter, len(members)), *members])
        return Entry([TransactionPrepare(session, counter, [1, ELSEWHERE], len(members)), *members])

    def consume(self, engine: Engine) -> Acknowledge:
        """Some of what is there, so that a transaction has something to set aside."""
        places = [(number, *each) for number, found in engine.destinations.items() for each in found.backlogs()]
        pending = [(number, subscription, backlog) for number, subscription, backlog in places if backlog.pending]
        if not pending:
            return self.acknowledge(engine)
        number, subscription, backlog = self.random.choice(pending)
        first, last = self.random.choice(list(backlog.pending))
        return Acknowledge(number, subscription, key_of(BOB, 1), [first, self.random.randint(first, last)])

    def end_transaction(self, engine: Engine) -> AnyCommand:
        random = self.random
        session = random.choice([*engine.unresolved, *engine.unresolved, key_of(CONNECTIONS[0], 7)])
        counter, is_commit = self.transactions.get(session, 1), random.random() < 0.5
        return random.choice(
            [
                TransactionDecide(session, counter, [1, ELSEWHERE], is_commit),
                TransactionFinish(session, counter, is_commit),
                TransactionSettle(session, counter),
            ]
        )

    def leave(self, engine: Engine) -> Move:
        """A step of a destination's way to elsewhere; mostly one that is possible."""
        random = self.random
        number = random.choice([self.number(engine), *engine.moves.leaving])
        leaving = engine.moves.leaving.get(number)
        if leaving is None:
            return Move(
                number, random.choice([MoveStage.PLANNED] * 4 + [MoveStage.CLOSED, MoveStage.OPENED]), ELSEWHERE
            )
        if leaving.source is None:
            return Move(number, random.choice([MoveStage.BEGUN, MoveStage.CANCELLED]), ELSEWHERE, 700 + number)
        return Move(number, MoveStage.ENDED, ELSEWHERE, leaving.number)

    def come(self, engine: Engine) -> AnyCommand:
        """A step of a destination's way here."""
        if self.coming:
            return self.coming.pop(0)
        if self.trip is None:
            return self._expect()
        trip, self.trip = self.trip, None
        name = trip.here.engine.destinations[trip.number].destination
        target = next((at for at, found in engine.moves.incoming.items() if found.made.destination == name), None)
        if target is None:
            return self.leave(engine)
        trip.target, trip.start = target, 1
        trip.here.order(Move(trip.number, MoveStage.BEGUN, 1, target))
        records = list(trip.here.engine.export(trip.number, trip.lent))
        arrivals = [Arrive(target, ATTEMPT, at, [it], at == len(records) - 1) for at, it in enumerate(records)]
        self.coming = [*trip.carried(), *arrivals, Settle(target)]
        return self.coming.pop(0)

    def _expect(self) -> Expect:
        random, side = self.random, Side(ELSEWHERE)
        self.trips += 1
        number, kind = self.trips, random.choice(list(DestinationKind))
        for place in range(1, number):
            side.order(CreateDestination(Destination(kind, f"stays{place}"), Policy()))
        policy = self.policy(kind)
        side.order(CreateDestination(Destination(kind, f"far{number}"), Policy()))
        if policy.dead_letter is not None:  # it does not come along
            side.order(CreateDestination(Destination(DestinationKind.QUEUE, policy.dead_letter), Policy()))
        side.order(SetPolicy(number, policy))
        if kind is DestinationKind.TOPIC:
            side.order(subscription(number, CONNECTIONS[0], name=f"far{number}", is_durable=True))
        for connection in CONNECTIONS:
            messages = [self.message() for _ in range(random.randint(1, 3))]
            side.order(batch(number, messages, key=key_of(connection, random.randint(1, 2))))
        side.order(Move(number, MoveStage.PLANNED, 1))
        self.trip = Travel(side, side, number)
        source = side.engine.destinations[number]
        return Expect(source.destination, source.policy, ELSEWHERE, number)
