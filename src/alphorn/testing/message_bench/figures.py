"""What a work found: figures beside their targets and the yardstick, and what it cost the servers."""

import msgspec


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure should be."""

    bound: float
    is_most: bool = False  # the figure may not be more; else it may not be less

    def is_met_by(self, value: float) -> bool:
        """Whether a figure is good enough."""
        return value <= self.bound if self.is_most else value >= self.bound


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured number."""

    name: str
    unit: str
    value: float
    target: Target | None = None
    is_met: bool | None = None  # None without a target
    limit: float | None = None  # what the yardstick did, where it can measure this
    ratio: float | None = None  # of the figure to the yardstick's


class WorkResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one work found."""

    work: str
    setting: str  # in words: how many of what, in how many processes
    messages: int
    figures: tuple[Figure, ...]
    cpu_s_per_million: dict[str, float] = {}  # of each node and of all clients, per million messages (deliveries in W3)
    limit_cpu_s_per_million: dict[str, float] = {}


def figure(name: str, unit: str, value: float, target: Target | None = None, limit: float | None = None) -> Figure:
    """A figure, judged."""
    return Figure(
        name=name,
        unit=unit,
        value=value,
        target=target,
        is_met=target.is_met_by(value) if target is not None else None,
        limit=limit,
        ratio=value / limit if limit else None,
    )


def at_least(bound: float) -> Target:
    """The figure may not be less."""
    return Target(bound=bound)


def at_most(bound: float) -> Target:
    """The figure may not be more."""
    return Target(bound=bound, is_most=True)
