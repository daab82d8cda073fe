"""The signet of the cluster: the first one that the log offers holds, on every replica, for ever."""

from alphorn.message_manager.effects import Effect
from alphorn.message_manager.state import State
from alphorn.model.commands import SIGNET_BYTES, KeepSignet
from alphorn.model.errors import PeerViolation


def keep_signet(state: State, command: KeepSignet, place: int, effects: list[Effect]) -> None:
    """Applies `KeepSignet`."""
    if len(command.signet) != SIGNET_BYTES:
        raise PeerViolation(f"a signet has {SIGNET_BYTES} bytes")
    state.signet = state.signet or command.signet
