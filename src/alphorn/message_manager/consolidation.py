"""When the log is consolidated before its time, because of its bytes.

The bus makes a checkpoint each `interval` numbers, and collects what no checkpoint needs. Where entries are large that
is too seldom: pages that are used again soon are still in memory and have their place in the file, while new ones must
be found, cleared and placed, which costs more than writing them. Where the disk is small, the log since the last
checkpoint must not take more than its share of it, and once it is full, what consumers have drained is given back by a
checkpoint alone. All are reached by setting the interval to what has passed, which brings a checkpoint at once, and
back when it has come. Only the primary's wish counts.
"""

from alphorn.message_manager.fullness import Space

TAIL_SHARE = 8  # of the disk: the log since the last checkpoint takes at most this part of it
TAIL_BYTES = 64 << 20  # of the log since the last checkpoint are worth another one,
TAIL_FACTOR = 64  # unless the last one took more than this part of them,
TAIL_OF_RETAINED = 64 << 10  # or so many bytes for each entry it retains, since a store goes through these at every one
AGAIN_S = 1.0  # between two attempts, so that making checkpoints is not all that is done;
AGAIN_BYTES = 8 << 30  # and longer where the disk is larger than this, as checkpoints take longer there


class Consolidation:
    """One replica's checkpoints, and when it wants another."""

    __slots__ = ("_again_at", "_bytes", "_checkpoint", "_interval", "_is_asked", "_newest", "_retained", "_state_bytes")

    def __init__(self, interval: int) -> None:
        """`interval` is what the cluster is configured with."""
        self._interval = interval
        self._checkpoint = -1  # number of the last one, as far as it is known; -1 before anything came
        self._is_asked = False
        self._newest = 0
        self._bytes = 0  # of the log since then
        self._state_bytes = 0  # of the last checkpoint
        self._retained = 0  # entries that it needs
        self._again_at = 0.0

    def on_entry(self, sequence: int, size: int) -> None:
        """The log has grown."""
        if self._checkpoint < 0:
            self._checkpoint = sequence - 1
        self._newest = sequence
        self._bytes += size

    def on_checkpoint(self, sequence: int) -> int | None:
        """A checkpoint is made here; gives the interval to set back, where it came before its time.

        Where it came much too early a primary has asked for it that may be gone now.
        """
        is_early = self._is_asked or 0 <= sequence - self._checkpoint < self._interval // 2
        self._checkpoint, self._newest, self._bytes, self._is_asked = sequence, sequence, 0, False
        self._state_bytes = 0
        return self._interval if is_early else None

    def on_state(self, size: int) -> None:
        """The checkpoint takes so many bytes more."""
        self._state_bytes += size

    def on_retained(self, entries: int) -> None:
        """The checkpoint needs so many entries."""
        self._retained = entries

    def look(self, space: Space, *, is_full: bool, now: float) -> int | None:
        """Gives the interval to set for a checkpoint now, where one is worth it or the disk needs it."""
        passed = self._newest - self._checkpoint
        if self._checkpoint < 0 or passed <= 0 or not (is_full or self._bytes > self._tail_bytes(space)):
            return None
        is_paced = is_full or self._is_asked or self._bytes > space.limit // TAIL_SHARE
        if is_paced and now < self._again_at:
            return None
        self._again_at = now + AGAIN_S * max(1.0, space.limit / AGAIN_BYTES)
        self._is_asked = True
        return passed

    def _tail_bytes(self, space: Space) -> int:
        """How long the log since the last checkpoint may become."""
        worth = max(TAIL_BYTES, TAIL_FACTOR * self._state_bytes, TAIL_OF_RETAINED * self._retained)
        return min(space.limit // TAIL_SHARE, worth)
