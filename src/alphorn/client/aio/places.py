"""Where destinations are, asked once for each."""

from alphorn.client.aio.line import AsyncLine
from alphorn.client.choices import DestinationLike, check_destination
from alphorn.client.temporary import Making
from alphorn.model.conversation import Resolve
from alphorn.model.errors import Error


class Places:
    """The destinations that a connection has used."""

    __slots__ = ("_line",)

    def __init__(self, line: AsyncLine) -> None:
        self._line = line

    async def find(self, destination: DestinationLike) -> int:
        """A destination's place; creates the destination where it does not exist. Raises `InvalidDestination`."""
        places = self._line.core.places
        if type(destination) is str and (known := places.get(destination)) is not None:
            return known
        name = check_destination(destination)
        known = places.get(name)
        if known is not None:
            return known
        answer = await self._line.ask(lambda request: Resolve(request, name))
        return self._line.core.remember_place(name, answer)

    async def make_temporary(self, kind: str) -> str:
        """Creates a destination that lives as long as the connection; cancelled, it leaves none without a name."""
        making = Making(self._line.core, kind)
        try:
            answer = await self._line.await_answer(making.ask)
        except Error:
            raise
        except BaseException:
            making.give_up()
            self._line.schedule()
            raise
        self._line.core.remember_place(making.name, answer)
        return making.name
