import signal

import pytest

from alphorn.testing.campaign import _pool

pytestmark = pytest.mark.processes


def test_workers_of_a_campaign_leave_interruptions_to_their_parent():
    before = signal.getsignal(signal.SIGINT)
    with _pool(1) as pool:
        assert pool.apply(signal.getsignal, (signal.SIGINT,)) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is before
