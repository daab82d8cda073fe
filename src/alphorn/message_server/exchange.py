"""Takes what processes say, and gives it to whom it concerns.

Rules, on which the promise rests that nothing acknowledged is lost, doubled or overtaken:

- A sender keeps what it said until it is `Settled`: everybody whom it concerned has it, or has ended. When its server
  dies it says all of that again, in order, through the other one, before anything new.
- So on whatever connection a receiver hears a sender, what it does not have comes there in order. It takes of each lane
  of a sender (what is for it alone, what is for all) what has a higher number than all before, and confirms the rest.
- What is for many is held by both servers, and `Taken` as soon as it is: from then on its sender may die. A server does
  not give out what it only holds: the sender says it there too when it turns to that server. Only where the sender is
  gone, and so is the server it spoke through, is a copy all there is, and given out.
- A process that the other server alone reaches is given everything by that one: it is delegated, in order.
- A message to one process is acknowledged by that process alone.
"""

from collections import OrderedDict
from collections.abc import Iterable

from alphorn.message_server.happenings import Happenings
from alphorn.message_server.mail_turn import MailTurn
from alphorn.message_server.mailbox import Mailbox, Message
from alphorn.message_server.roster import Process, Roster
from alphorn.message_server.settings import Limits
from alphorn.model.errors import Blocked, Misuse, UnknownOutcome
from alphorn.model.events import Event
from alphorn.model.internal import OTHERS, Failed, Hold, Key, Missed


class Exchange:
    """All messages that somebody waits for."""

    __slots__ = (
        "_is_peer_there",
        "_lapsed",
        "_limits",
        "_mail",
        "_messages",
        "_roster",
        "_unclaimed",
        "bytes",
        "recent",
    )

    def __init__(self, roster: Roster, limits: Limits, mail: MailTurn) -> None:
        self._roster = roster
        self._limits = limits
        self._mail = mail
        self._messages: dict[Key, Message] = {}
        self._unclaimed: dict[str, Mailbox] = {}  # for nodes that have not come yet
        self._lapsed: OrderedDict[bytes, tuple[Process, int]] = OrderedDict()  # who was away too long, what it missed
        self._is_peer_there = False
        self.bytes = 0
        self.recent = Happenings(limits.events)

    @property
    def count(self) -> int:
        """How many messages wait for somebody."""
        return len(self._messages)

    # --- what processes say ---

    def say(self, sender: Process, number: int, to: str, body: bytes) -> None:
        """A message for one process, or for all others."""
        if self._said_again((sender.run, number)):
            return
        if self.bytes + len(body) > self._limits.total_bytes:
            self._fail(
                sender, number, Blocked(f"this message server holds {self.bytes >> 20} MiB already; say it later")
            )
            return
        message = Message(
            sender=sender.row.name, run=sender.run, number=number, to=to, body=body, event=None, is_own=True
        )
        if to == OTHERS:
            self._give(message, [process for process in self._roster if process is not sender])
            return
        target = self._roster.of_name(to)
        box = target.mailbox if target is not None else self._box_of_node(to)
        if box is None:
            there = ", ".join(name for name in self._roster.names()[:20])
            self._fail(sender, number, Misuse(f"no process is named {to!r}; there are {there}"))
        elif self._is_full(box, message):
            who = f"{to} does not read" if target is not None and target.is_reachable else f"{to} is away"
            reason = f"{who}, and {len(box)} messages of {box.bytes >> 10} KiB wait for it; say it later"
            self._fail(sender, number, Blocked(reason))
        elif target is None:
            box.push(message, is_active=True)
            self._keep(message)
        else:
            self._give(message, [target])

    def report(self, name: str, run: bytes, number: int, event: Event) -> None:
        """An event, from a process or from this server."""
        if self._said_again((run, number)):
            return
        message = Message(sender=name, run=run, number=number, to=OTHERS, body=b"", event=event, is_own=True)
        is_new = self.recent.add(event)
        self._give(message, [process for process in self._roster if is_new and process.wants(event.kind)])

    def confirm(self, process: Process, heard: Iterable[tuple[bytes, int, int]]) -> None:
        """A process has what these senders said to it alone, and to all, each through a number."""
        for run, alone, for_all in heard:
            box = process.mailbox
            had = box.confirm(run, alone, is_for_all=False) + box.confirm(run, for_all, is_for_all=True)
            for message in had:
                if message.is_copied or message.is_at_peer:
                    self._mail.release(process.run, *message.key)
                self._strike(message, process)
        self._tell_missed(process)

    # --- what the peer says ---

    def hold(self, frame: Hold) -> None:
        """Keeps a copy of what the peer has, for those of its recipients that are known."""
        key = (frame.run, frame.number)
        message = self._messages.get(key)
        if frame.event is not None:
            self.recent.add(frame.event)
        if message is None:
            message = Message(
                sender=frame.sender,
                run=frame.run,
                number=frame.number,
                to=frame.to,
                body=frame.body,
                event=frame.event,
                is_own=False,
            )
        message.is_at_peer, message.is_own_at_peer = True, frame.is_own
        delegated = set(frame.delegated)
        for run in frame.recipients:
            process = self._roster.of_run(run)
            if process is None:  # it has ended, as far as anybody here knows
                self._mail.release(run, *key)
            elif run not in message.waiting and self._is_full(process.mailbox, message):
                continue
            elif not self._put(message, process, is_active=run in delegated):
                self._mail.release(run, *key)
            elif run in delegated:
                self.give_out(process)
        if message.waiting:
            self._keep(message)
        self._mail.held(*key)

    def held(self, items: Iterable[Key]) -> None:
        """The peer has these too."""
        for key in items:
            message = self._messages.get(key)
            if message is not None:
                message.is_at_peer = True
                self._tell_if_safe(message)

    def release(self, items: Iterable[tuple[bytes, bytes, int]]) -> None:
        """These recipients have it from the peer."""
        for recipient, run, number in items:
            process = self._roster.of_run(recipient)
            message = process.mailbox.remove((run, number)) if process is not None else None
            if process is not None and message is not None:
                self._strike(message, process)

    # --- who comes and goes ---

    def on_peer(self, *, is_there: bool) -> None:
        """The peer is there, and gets all that it is to hold; or it is gone, and so is what was said there alone."""
        self._is_peer_there = is_there
        for message in list(self._messages.values()):
            message.is_at_peer = message.is_copied = message.is_own_at_peer = False
            if is_there and message.to == OTHERS:
                self._copy(message)
            else:
                self._tell_if_safe(message)
        if not is_there:
            for run in {message.run for message in self._messages.values() if not message.is_own}:
                self.on_silent(run)

    def on_silent(self, run: bytes) -> None:
        """A sender may be gone: what is held of it, and was said to no server that is there, is given out here."""
        sender = self._roster.of_run(run)
        if sender is not None and not sender.is_down:
            return
        for process in self._roster:
            for message in process.mailbox.of_sender(run):
                if not message.is_own_at_peer:
                    process.mailbox.activate(message.key)
            self.give_out(process)

    def on_known(self, process: Process) -> bool:
        """A process is new here: what waits for its name is for it. Whether what it missed was counted."""
        was_counted = process.run in self._lapsed
        _, process.missed = self._lapsed.pop(process.run, (process, 0))
        box = self._unclaimed.pop(process.row.name, None)
        if box is not None:
            for message in box.empty():
                self._put(message, process, is_active=True)
        return was_counted

    def on_connected(self, process: Process) -> None:
        """It has a new connection here: it gets everything again that it has not confirmed."""
        self._tell_missed(process)
        self.give_out(process)

    def on_at_peer(self, process: Process) -> None:
        """The peer reaches it: where this server does not, that one gives out what waits."""
        if process.connection is None:
            for message in process.mailbox.messages():
                self._copy(message)

    def on_down(self, process: Process) -> None:
        """It has been away for a while: nobody waits any longer to hear that it has something."""
        for message in process.mailbox.messages():
            self._tell_if_safe(message)
        self.on_silent(process.run)

    def on_ended(self, process: Process, *, heir: Process | None = None, has_lapsed: bool = False) -> None:
        """It is over. What was said to its name and not given out goes to its heir, another run of that name."""
        if has_lapsed:
            self._lapsed[process.run] = process, process.missed + len(process.mailbox)
            if len(self._lapsed) > self._limits.lapsed:
                self._lapsed.popitem(last=False)
        for message in process.mailbox.messages():
            goes_on = message.is_own and message.to and not (message.is_copied or message.is_at_peer)
            if heir is not None and goes_on and not process.mailbox.was_sent(message.key):
                self._put(message, heir, is_active=True)
            elif message.to:
                reason = f"{message.to} ended before it said that it has the message; ask it, or say it again"
                self._fail_message(message, UnknownOutcome(reason))
            self._strike(message, process)
        process.mailbox.empty()
        self.on_silent(process.run)

    def give_out(self, process: Process | None) -> None:
        """Says to a process all that waits for it and was not said on its connection."""
        if process is not None and process.connection is not None:
            for message in process.mailbox.unsent():
                self._mail.tell(process.connection, message.frame)

    # --- parts ---

    def _said_again(self, key: tuple[bytes, int]) -> bool:
        """Whether this is known; its sender has turned to this server with it."""
        message = self._messages.get(key)
        if message is None:
            return False
        message.is_own = True
        if message.is_taken or message.is_at_peer:
            message.is_taken = False
            self._tell_if_safe(message)
        delegated = []
        for run in message.waiting:
            process = self._roster.of_run(run)
            if process is not None:
                process.mailbox.activate(key)
                self.give_out(process)
                delegated += [process] if self._is_peers(process) else []
        if delegated:
            self._copy(message)
        return True

    def _give(self, message: Message, recipients: list[Process]) -> None:
        """To those who have room for it; others have missed it."""
        for process in recipients:
            if self._is_full(process.mailbox, message):
                self._miss(process)
            else:
                self._put(message, process, is_active=True)
        if message.to == OTHERS:
            for process, missed in list(self._lapsed.values()):
                if message.event is None or process.wants(message.event.kind):
                    self._lapsed[process.run] = process, missed + 1
        if not message.waiting:
            self._settle(message)
            if message.event is None:
                return
        else:
            self._keep(message)
        if message.to == OTHERS or any(map(self._is_peers, recipients)):
            self._copy(message)
        for process in recipients:
            self.give_out(process)
        self._tell_if_safe(message)

    def _put(self, message: Message, process: Process, *, is_active: bool) -> bool:
        """Lets it wait for this process, unless that has it, or what its sender said after it."""
        if not process.mailbox.push(message, is_active=is_active):
            return False
        message.waiting.add(process.run)
        return True

    def _keep(self, message: Message) -> None:
        if message.key not in self._messages:
            self._messages[message.key] = message
            self.bytes += message.size

    def _copy(self, message: Message) -> None:
        """The peer is to hold it too, and to give it to whom it alone reaches."""
        if not self._is_peer_there:
            return
        waiting = [self._roster.of_run(run) for run in sorted(message.waiting)]
        delegated = [process.run for process in waiting if process is not None and self._is_peers(process)]
        self._mail.tell_peer(
            Hold(
                message.sender,
                message.run,
                message.number,
                message.to,
                sorted(message.waiting),
                delegated if message.is_own else [],
                message.is_own,
                message.body,
                message.event,
            )
        )
        message.is_copied = True

    @staticmethod
    def _is_peers(process: Process) -> bool:
        """Whether the peer alone reaches it."""
        return process.connection is None and process.is_at_peer

    def _is_full(self, box: Mailbox, message: Message) -> bool:
        return len(box) >= self._limits.mailbox_items or box.bytes + message.size > self._limits.mailbox_bytes

    def _box_of_node(self, name: str) -> Mailbox | None:
        return self._unclaimed.setdefault(name, Mailbox()) if self._roster.is_node(name) else None

    def _miss(self, process: Process) -> None:
        process.missed += 1

    def _tell_missed(self, process: Process) -> None:
        if process.missed and process.connection is not None:
            self._mail.tell(process.connection, Missed(process.missed))
            process.missed = 0

    def _strike(self, message: Message, process: Process) -> None:
        """It does not wait for this process any more."""
        message.waiting.discard(process.run)
        if not message.waiting:
            self._settle(message)
        elif message.is_own and not message.is_taken:
            self._tell_if_safe(message)

    def _settle(self, message: Message) -> None:
        if self._messages.pop(message.key, None) is not None:
            self.bytes -= message.size
        sender = self._roster.of_run(message.run)
        if message.is_own and sender is not None and sender.connection is not None:
            self._mail.settled(sender.connection, message.number)

    def _tell_if_safe(self, message: Message) -> None:
        """A message for many is safe when both servers have it; with one left, when everybody has it who is there."""
        if message.to != OTHERS or message.is_taken or not message.is_own:
            return
        sender = self._roster.of_run(message.run)
        if sender is None or sender.connection is None:
            return
        if message.is_at_peer or (not self._is_peer_there and self._is_with_all(message)):
            message.is_taken = True
            self._mail.taken(sender.connection, message.number)

    def _is_with_all(self, message: Message) -> bool:
        waiting = (self._roster.of_run(run) for run in message.waiting)
        return all(process is None or process.is_down for process in waiting)

    def _fail(self, sender: Process, number: int, error: Exception) -> None:
        if sender.connection is not None:
            self._mail.tell(sender.connection, Failed(number, type(error).__name__, str(error)))

    def _fail_message(self, message: Message, error: Exception) -> None:
        """Its sender hears how it ended, and not that it is settled."""
        sender = self._roster.of_run(message.run)
        if message.is_own and sender is not None:
            self._fail(sender, message.number, error)
            message.is_own = False

    def describe(self) -> dict[str, object]:
        """For people."""
        return {
            "messages": len(self._messages),
            "bytes": self.bytes,
            "events": len(self.recent),
            "repeated": self.recent.repeated,
            "lapsed": len(self._lapsed),
        }
