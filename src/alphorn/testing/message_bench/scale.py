"""How large the works are."""

import msgspec


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """What the user may choose, and what a work fills in."""

    work: str = ""
    messages: int = 0  # 0: as many as the work has by default
    size: int = 100
    per_second: int = 1000  # W2
    seconds: float = 10.0  # W2, which is paced and takes at most as long
    connections: int = 10_000  # W7
    destinations: int = 10_000  # how many "many" are
    together: bool = False  # the Client Manager is in the primary's process

    @property
    def warm_up(self) -> int:
        """Messages that are sent before anything is measured."""
        return max(1, min(100_000, self.messages // 20))
