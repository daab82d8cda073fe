"""What a Message Manager has ordered and is not in the log yet.

When the group has given its member up, none of it is ever ordered. It is ordered again then, as it is: what was wanted
as primary names its epoch and means nothing in a later one, and all else is for the log whoever is primary.
"""


class OwnOrders:
    """Entries under way, by the bus's handles."""

    __slots__ = ("_payloads",)

    def __init__(self) -> None:
        self._payloads: dict[int, bytes] = {}

    def ordered(self, handle: int, payload: bytes) -> None:
        """The bus has taken an entry."""
        self._payloads[handle] = payload

    def landed(self, handle: int) -> None:
        """It is in the log."""
        self._payloads.pop(handle, None)

    def refused(self, handle: int, *, is_unknown: bool) -> bytes | None:
        """It is not. Gives what is to be ordered again; None where the bus would refuse it again."""
        payload = self._payloads.pop(handle, None)
        return payload if is_unknown else None
