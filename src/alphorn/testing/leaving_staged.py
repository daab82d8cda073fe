"""Somebody wants a destination on another channel while a job has messages staged for it, which it publishes later.

What is staged is bound to its channel's log, so the destination stays until it is published or let go, and the job is
refused nothing. It happens when all is well, where no other reason can keep a destination or spoil a batch.
"""

from collections.abc import Callable, Sequence
from functools import partial

from alphorn.client.requests import Answer
from alphorn.model.errors import Error
from alphorn.model.moving_conversation import Move
from alphorn.testing.staging import Publication, StagingClient


def leave_staged(jobs: Sequence[StagingClient]) -> None:
    """Each of these, which are at nothing, stages a batch and publishes it when others have wanted its destinations."""
    for job in jobs:
        job.stage_whole(partial(_want_elsewhere, job))


def _want_elsewhere(job: StagingClient, publication: Publication, then: Callable[[], None]) -> None:
    """All that a publication is for is wanted on every other channel, one after the other."""
    wishes = [
        (name, channel)
        for name, home in sorted(publication.homes.items())
        for number, channel in enumerate(job.channels)
        if number != home
    ]

    def go_on(answer: Answer | Error | None = None) -> None:
        if not wishes:
            then()
            return
        destination, channel = wishes.pop()
        job.ask(partial(Move, destination=destination, channel=channel), go_on)

    go_on()
