"""Where destinations are, asked once for each."""

from alphorn.client.blocking.line import Line
from alphorn.client.choices import DestinationLike, check_destination
from alphorn.client.temporary import Making
from alphorn.model.conversation import Resolve
from alphorn.model.errors import Error


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
        """Creates a destination that lives as long as the connection; interrupted, it leaves none without a name."""
        line = self._line
        with line.lock:
            making = Making(line.core, kind)
        try:
            answer = line.await_answer(making.ask)
        except Error:
            raise
        except BaseException:
            line.change(making.give_up)
            line.wake()
            raise
        line.core.remember_place(making.name, answer)
        return making.name
