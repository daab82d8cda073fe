"""Deliberate mistakes in transactions, which transfers between accounts must show."""

from typing import Any

from alphorn.client_manager.transactions import DONE, Transaction, Transactions
from alphorn.message_manager import engine, transacting, transaction_state
from alphorn.message_manager.effects import Effect
from alphorn.message_manager.state import State
from alphorn.message_manager.transacting import Members, commit_at_once
from alphorn.model import commands, link
from alphorn.model.commands import TransactionCommit, TransactionFinish, TransactionSettle
from alphorn.testing.mutation import Mutant, Patch


def _nothing_recorded() -> list[Patch]:
    def decide_here(self: Any, transaction: Transaction) -> None:
        transaction.deadline = float("inf")
        number = DONE if transaction.is_commit else 0
        self._on_decided(transaction, transaction.channels[0], link.Answered(0, number))

    def on_decided(self: Any, transaction: Transaction, home: int, answer: link.Answered) -> None:
        original(self, transaction, home, answer)
        if transaction.is_commit:
            finish = TransactionFinish(transaction.session, transaction.counter, True)
            self._desk.channels[home].want(finish)

    original = Transactions._on_decided
    return [(Transactions, "_decide", decide_here), (Transactions, "_on_decided", on_decided)]


def _home_not_asked() -> list[Patch]:
    def resolve(self: Any, frame: link.InDoubt) -> None:
        for channel in frame.channels:
            self._desk.channels[channel].want(TransactionFinish(frame.session, frame.counter, False))
        self._desk.channels[frame.channels[0]].want(TransactionSettle(frame.session, frame.counter))

    return [(Transactions, "resolve", resolve)]


def _done_again() -> list[Patch]:
    def commit_again(
        state: State, command: TransactionCommit, members: Members, place: int, effects: list[Effect]
    ) -> None:
        state.transactions.of.get(commands.connection_of(command.session), {}).pop(command.session, None)
        commit_at_once(state, command, members, place, effects)

    return [(engine, "_APPLY_GROUP", {**engine.__dict__["_APPLY_GROUP"], TransactionCommit: commit_again})]


def _prepared_not_kept() -> list[Patch]:
    return [(transaction_state.Transactions, "__iter__", lambda self: iter(()))]


def _consumed_not_checked() -> list[Patch]:
    return [(transacting, "_check", lambda state, members, *, is_thorough=False: None)]


def _replaced_is_gone() -> list[Patch]:
    return [(transacting, "_were_replaced", lambda destination, wanted, pending: False)]


def _nobody_asks() -> list[Patch]:
    return [(Transactions, "resolve", lambda self, frame: None)]


def _moved_while_prepared() -> list[Patch]:
    return [(transaction_state.Transactions, "involve", lambda self, destination: False)]


def _prepared_while_moved() -> list[Patch]:
    return [(transacting, "_check_stays", lambda state, number, *, is_thorough: None)]


TRANSACTION_MUTANTS = tuple(
    Mutant(name=name, description=description, kind="transfers", patch=patch)
    for name, description, patch in (
        ("nothing-recorded", "Channels finish a transaction before its decision is in any log.", _nothing_recorded),
        ("home-not-asked", "What is in doubt is rolled back without asking its home channel.", _home_not_asked),
        ("done-again", "A transaction that is asked for again is done again.", _done_again),
        ("prepared-not-kept", "Checkpoints do not say which transactions are prepared.", _prepared_not_kept),
        ("consumed-not-checked", "What a transaction consumes need not be there any more.", _consumed_not_checked),
        ("moved-while-prepared", "A destination leaves that a prepared transaction concerns.", _moved_while_prepared),
        ("prepared-while-moved", "A transaction is prepared for a destination that leaves.", _prepared_while_moved),
        ("replaced-is-gone", "A value that was replaced meanwhile cannot be consumed.", _replaced_is_gone),
        ("nobody-resolves", "Transactions whose Client Manager died stay as they are.", _nobody_asks),
    )
)
