"""A node whose machine's clock is wrong by so many seconds: `python skewed_node.py SECONDS` and a node's arguments."""

import datetime
import sys
import time

SKEW_S = float(sys.argv[1])
_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime


class SkewedDatetime(_datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return _datetime.fromtimestamp(time.time(), tz)


time.time = lambda: _time() + SKEW_S
time.time_ns = lambda: _time_ns() + int(SKEW_S * 1e9)
datetime.datetime = SkewedDatetime  # type: ignore[misc]

from alphorn.node.main import main  # noqa: E402 - with the clock as it is from here on

sys.exit(main(sys.argv[2:]))
