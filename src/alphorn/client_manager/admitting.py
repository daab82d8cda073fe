"""Programs that want to be work processes of the cluster: where the message servers are, and a ticket to them.

Message servers look at tickets and names themselves. What is refused here already is told to who can mend it.
"""

from collections.abc import Callable

from alphorn.client_manager.connection import Connection
from alphorn.client_manager.desk import Desk
from alphorn.model.errors import Error, Misuse
from alphorn.model.process_conversation import AskTicket, TicketAnswer, check_process_name

MakePass = Callable[[str], tuple[bytes, bytes]]  # of a name: a ticket, and its secret


def no_pass(name: str) -> tuple[bytes, bytes]:
    """Where the cluster has no key."""
    return b"", b""


class Admitting:
    """Their requests."""

    __slots__ = ("_desk", "_make_pass")

    def __init__(self, desk: Desk, make_pass: MakePass) -> None:
        self._desk = desk
        self._make_pass = make_pass

    def on_ask(self, connection: Connection, frame: AskTicket) -> None:
        """A program wants to be a work process."""
        desk = self._desk
        try:
            self._check(frame.name)
        except Error as error:
            desk.fail(connection.stream, frame.request, error)
            return
        ticket, secret = self._make_pass(frame.name)
        servers = list(desk.settings.message_servers)
        desk.reply(connection.stream, TicketAnswer(frame.request, servers, ticket, secret))

    def _check(self, name: str) -> None:
        check_process_name(name)
        settings = self._desk.settings
        node = next((node for node in settings.nodes if node.name == name), None)
        if node is not None:
            raise Misuse(f"{name} is a {node.kind.replace('_', ' ')} of this cluster; join under another name")
        if not settings.message_servers:
            raise Misuse("this cluster has no message servers; add nodes of kind message_server to its cluster file")
