"""Deliberate mistakes in how connections prove themselves."""

from alphorn.client_manager.identity import Identity
from alphorn.message_manager import checkpoint, engine
from alphorn.message_manager.checkpoint_records import Head
from alphorn.message_manager.effects import Effect
from alphorn.message_manager.state import State
from alphorn.model.commands import KeepSignet
from alphorn.testing.mutation import Mutant, Patch


def _any_secret() -> list[Patch]:
    return [(Identity, "is_proven", lambda self, connection, secret: True)]


def _signet_not_kept() -> list[Patch]:
    def head_of(state: State) -> Head:
        return Head(state.sequence, state.now_ms, state.next_number)

    return [(checkpoint, "head_of", head_of)]


def _newest_signet() -> list[Patch]:
    def keep_signet(state: State, command: KeepSignet, place: int, effects: list[Effect]) -> None:
        state.signet = command.signet

    return [(engine, "_APPLY", {**engine.__dict__["_APPLY"], KeepSignet: keep_signet})]


IDENTITY_MUTANTS = tuple(
    Mutant(name=name, description=description, kind="cluster", patch=patch)
    for name, description, patch in (
        ("any-secret", "A connection goes on with any secret, or none.", _any_secret),
        ("signet-not-kept", "Checkpoints do not have the signet.", _signet_not_kept),
        ("newest-signet", "A signet that is offered later takes the place of the first.", _newest_signet),
    )
)
