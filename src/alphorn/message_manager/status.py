"""What `alphorn status` shows of a Message Manager and, from the primary, of its channel."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from alphorn.message_manager.dispatch import Dispatcher
from alphorn.message_manager.engine import Engine
from alphorn.message_manager.flow import FlowControl
from alphorn.message_manager.machine import Witness
from alphorn.message_manager.presence import Presence
from alphorn.message_manager.queue import Queue
from alphorn.message_manager.readers import Reader
from alphorn.message_manager.topic import Topic
from alphorn.model.link import PAGE_ROWS, Describe, Described, Introduce
from alphorn.model.status_pages import client_manager_row

_COUNTER_SHIFT = 16  # an epoch's low bits name its sequencer


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of itself."""

    name: str
    pid: int
    address: str
    channel: str
    rank: int = 0
    run: bytes = b""  # another one for each start
    copies: Callable[[], int] = lambda: 0  # of the channel, that have all that is committed
    copies_wanted: int = 0


class Picture:
    """What one replica says of itself and, while it is primary, of its channel: destinations a page at a time.

    Whatever is there from the first page to the last is in one of them, once, whatever else comes and goes meanwhile.
    """

    __slots__ = ("_about", "_epoch", "_flow", "_numbers", "presence", "witnesses")

    def __init__(self, about: About, flow: FlowControl) -> None:
        self._about = about
        self._flow = flow
        self.presence = Presence()  # of clients, while it is primary
        self.witnesses: tuple[Witness, ...] = ()
        self._numbers: list[int] = []  # of all destinations when somebody began with the first: sorting takes its time
        self._epoch = 0  # in which that was: after another one's, others may have been created

    def answer(
        self,
        asked: Describe,
        engine: Engine,
        dispatcher: Dispatcher | None,
        epoch: int,
        introduced: Mapping[int, Introduce],
        read: int,
    ) -> Described:
        """One page, for a Client Manager to put together (client_manager/picturing.py)."""
        parts: dict[str, Any] = {}
        after = 0
        if asked.after < 0:
            parts["node"] = self._node(engine, epoch, read, role="backup" if dispatcher is None else "primary")
            parts["node"] |= self._flow.describe_node()
        if asked.after < 0 and dispatcher is not None:
            parts |= self._channel(engine, epoch, introduced)
        if dispatcher is not None:
            self._list_anew(engine, epoch, asked.after)
            parts["destinations"], after = self._page(engine, dispatcher, asked.after, asked.maximum)
        return Described(asked.request, msgspec.json.encode(parts) if parts else b"", after)

    def _node(self, engine: Engine, epoch: int, read: int, *, role: str) -> dict[str, Any]:
        about = self._about
        return {
            "name": about.name,
            "kind": "message_manager",
            "pid": about.pid,
            "address": about.address,
            "channel": about.channel,
            "role": role,
            "rank": about.rank,
            "epoch": epoch >> _COUNTER_SHIFT,
            "lag": 0,
            "applied": engine.sequence,
            "read": read,  # messages that readers of the log got here
        }

    def _channel(self, engine: Engine, epoch: int, introduced: Mapping[int, Introduce]) -> dict[str, Any]:
        """What the primary alone says, but destinations."""
        about = self._about
        return {
            "channel": {
                "name": about.channel,
                "primary": about.name,
                "epoch": epoch >> _COUNTER_SHIFT,
                "sequence": engine.sequence,
                "copies": about.copies(),
                "copies_wanted": about.copies_wanted,
                "destinations": len(engine.destinations),
                "closed": engine.moves.is_closed,
            },
            "client_managers": [
                client_manager_row(frame.name, frame.pid, frame.address, self.presence.count(number))
                for number, frame in introduced.items()
            ],
            "witnesses": [_witness(witness) for witness in self.witnesses if witness.is_live],
            "readers": [_reader(reader, about.channel, engine) for reader in engine.readers],
            "moves": _moves(engine),
        }

    def _list_anew(self, engine: Engine, epoch: int, after: int) -> None:
        if after <= 0 or epoch != self._epoch:
            self._numbers, self._epoch = sorted(engine.destinations), epoch

    def _page(
        self, engine: Engine, dispatcher: Dispatcher, after: int, maximum: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Destinations with numbers above `after`, and what the next page comes after; 0: there is none."""
        first = bisect_right(self._numbers, after)
        last = first + min(max(maximum, 1), PAGE_ROWS)
        numbers = self._numbers[first:last]
        sources = [engine.destinations[number] for number in numbers if number in engine.destinations]
        return [self._row(source, dispatcher) for source in sources], numbers[-1] if last < len(self._numbers) else 0

    def _row(self, source: Queue | Topic, dispatcher: Dispatcher) -> dict[str, Any]:
        backlogs, outlets = source.backlogs(), dispatcher.outlets(source.number)
        return {
            "name": str(source.destination),
            "channel": self._about.channel,
            "depth": max((len(backlog) for _, backlog in backlogs), default=0),
            "held": max((outlet.held for outlet in outlets), default=0),
            "consumers": sum(len(outlet.consumers) for outlet in outlets),
            "subscriptions": len(backlogs) if isinstance(source, Topic) else 0,
            "messages": source.next_position - 1,
            "policy": source.policy,
            **self._flow.describe_destination(source.number),
        }


def _witness(witness: Witness) -> dict[str, Any]:
    return {
        "name": witness.name,
        "kind": "witness",
        "pid": witness.pid or None,
        "address": witness.address,
        "channel": "",  # it votes in all of them
        "role": "witness",
        "epoch": 0,
        "lag": 0,
    }


def _reader(reader: Reader, channel: str, engine: Engine) -> dict[str, Any]:
    """A named reader; its lag is in messages that arrived where it had not come to."""
    lag = 0
    for number in reader.destinations:
        source = engine.destinations.get(number)
        first = None if source is None else source.segments.from_arrival(reader.sequence)
        if source is not None and first is not None:
            lag += source.next_position - first
    return {"name": reader.name, "channel": channel, "sequence": reader.sequence, "lag": lag}


def _moves(engine: Engine) -> list[dict[str, Any]]:
    """Destinations on their way from here; `to` is the channel's place in the cluster's configuration."""
    found = []
    for number, leaving in sorted(engine.moves.leaving.items()):
        source = leaving.source or engine.destinations[number]
        found.append({"name": str(source.destination), "to": leaving.channel, "stage": leaving.stage.name.lower()})
    return found
