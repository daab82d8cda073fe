"""A checkpoint server: consolidates at the marks in the log and reports what is durable to the sequencer.

The mark is an entry of the log, so all checkpoint servers consolidate at the same numbers. The upper layer writes its
state to storage; a report with the terminal number and the size follows once that is durable.
"""

from alphorn.bus.frames import CheckpointReport
from alphorn.bus.station import Station
from alphorn.bus.storage import CheckpointInfo

_NEVER = float("inf")


class CheckpointServer:
    """Reports this member's newest durable checkpoint, once the upper layer has all that belongs to it."""

    __slots__ = ("_report_at", "_station", "reported", "sequence")

    def __init__(self, station: Station) -> None:
        self._station = station
        self.sequence = 0
        self.reported = 0
        self._report_at = _NEVER

    def on_written(self, sequence: int, now: float) -> None:
        """A checkpoint is durable; one that was installed counts too, whether it came from this disk or a peer."""
        if self._station.is_checkpoint_server and sequence > self.sequence:
            self.sequence = sequence
            self._report_at = now

    def report_again(self, now: float) -> None:
        """To a new sequencer, or in case the last report was lost."""
        if self.sequence:
            self._report_at = now

    def next_deadline(self) -> float:
        """When it wants to report."""
        return self._report_at

    def on_time(self, now: float) -> None:
        """Reports to the sequencer of the moment."""
        station = self._station
        if now < self._report_at:
            return
        self._report_at = _NEVER
        info = station.storage.checkpoint()
        # Storage may show a newer one that is not durable yet; that one is reported when it is.
        if station.sequencer and isinstance(info, CheckpointInfo) and info.sequence <= self.sequence:
            self.reported = info.sequence
            station.send_member(station.sequencer, CheckpointReport(info.sequence, info.size, info.digest))

    def describe(self) -> dict[str, object]:
        """For people."""
        return {"checkpoint": self.sequence, "reported": self.reported}
