"""What a client says to have destinations moved between channels: a part of `conversation`."""

from alphorn.model.frame_kinds import ClientFrame


class Move(ClientFrame, frozen=True, array_like=True, gc=False, tag=55):
    """Moves a destination to another channel, while it is used. Answered by `Done` when it is there, or by `Failed`."""

    request: int
    destination: str
    channel: str  # its name


class Drain(ClientFrame, frozen=True, array_like=True, gc=False, tag=56):
    """Moves everything off a channel, and lets nothing new onto it; or lets it on again (`is_over`).

    Answered by `Done`, with how many destinations were moved, or by `Failed`.
    """

    request: int
    channel: str
    is_over: bool = False
