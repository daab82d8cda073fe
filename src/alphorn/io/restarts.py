"""When a process that died is started again: at once at first, later and later, and at last not any more."""

QUICK_S = 10.0  # a process that ran for less died soon after its start
QUICK_DEATHS_MAX = 6
FIRST_S = 0.1
LONGEST_S = 5.0


class RestartPolicy:
    """Of one process. Takes how long it ran; knows no clock."""

    __slots__ = ("_first_s", "_longest_s", "_quick_s", "quick_deaths", "quick_deaths_max")

    def __init__(
        self,
        *,
        quick_s: float = QUICK_S,
        quick_deaths_max: int = QUICK_DEATHS_MAX,
        first_s: float = FIRST_S,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._quick_s = quick_s
        self._first_s = first_s
        self._longest_s = longest_s
        self.quick_deaths_max = quick_deaths_max
        self.quick_deaths = 0  # without a longer life between them

    def on_end(self, ran_s: float) -> float | None:
        """The process ended: the seconds to wait before it is started again, or None when it is given up."""
        if ran_s >= self._quick_s:
            self.quick_deaths = 0
        self.quick_deaths += 1
        if self.quick_deaths >= self.quick_deaths_max:
            return None
        return float(min(self._first_s * 2 ** (self.quick_deaths - 1), self._longest_s))
