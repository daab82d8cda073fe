"""Deliberate mistakes in the protocol. A campaign that does not catch each of them proves little about the protocol."""

from alphorn.testing.agreement_mutants import AGREEMENT_MUTANTS
from alphorn.testing.flow_mutants import FLOW_MUTANTS
from alphorn.testing.identity_mutants import IDENTITY_MUTANTS
from alphorn.testing.message_mutants import MESSAGE_MUTANTS
from alphorn.testing.moving_mutants import MOVING_MUTANTS
from alphorn.testing.mutation import Mutant
from alphorn.testing.return_mutants import RETURN_MUTANTS
from alphorn.testing.server_mutants import SERVER_MUTANTS
from alphorn.testing.transaction_mutants import TRANSACTION_MUTANTS

MUTANTS: tuple[Mutant, ...] = (
    *AGREEMENT_MUTANTS,
    *FLOW_MUTANTS,
    *RETURN_MUTANTS,
    *MESSAGE_MUTANTS,
    *MOVING_MUTANTS,
    *TRANSACTION_MUTANTS,
    *SERVER_MUTANTS,
    *IDENTITY_MUTANTS,
)


def find_mutant(name: str) -> Mutant:
    """The mutant of this name; raises `KeyError`."""
    return {mutant.name: mutant for mutant in MUTANTS}[name]
