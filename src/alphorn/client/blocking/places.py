"""Where destinations are, asked once for each."""

from alphorn.client.blocking.line import Line
from alphorn.client.choices import DestinationLike, check_destination
from alphorn.model.conversation import Resolve
from alphorn.model.destinations import TEMPORARY


class Places:
    """The destinations that a connection has used."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line = line

    def find(self, destination: DestinationLike) -> int:
        """A destination's place; creates the destination where it does not exist. Raises `InvalidDestination`."""
        places = self._line.core.places
        if type(destination) is str and (known := places.get(destination)) is not None:
            return known
        name = check_destination(destination)
        known = places.get(name)
        if known is not None:
            return known
        answer = self._line.ask(lambda request: Resolve(request, name))
        return self._line.core.remember_place(name, answer)

    def make_temporary(self, kind: str) -> str:
        """Creates a destination that lives as long as the connection."""
        core = self._line.core
        with self._line.lock:
            name = f"{kind}:{TEMPORARY}{core.connection.hex()}.{core.next_number()}"
        answer = self._line.ask(lambda request: Resolve(request, name, is_temporary=True))
        core.remember_place(name, answer)
        return name
