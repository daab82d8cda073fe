"""Mutants: each deliberate mistake is caught, and is gone again afterwards. `make mutants` hunts all of them."""

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from alphorn.bus.station import Station
from alphorn.cli import sim
from alphorn.testing import campaign
from alphorn.testing.kinds import Kind
from alphorn.testing.mutants import MUTANTS, find_mutant
from alphorn.testing.mutation import Mutant
from alphorn.testing.run import Result

SEEDS = range(1, 61)
QUICK = {  # mutants that one of the first seeds shows, and who may object
    "half-decides": {"nothing is delivered before commit"},
    "one-vote-commits": {"nothing is delivered before commit"},
    "one-copy-fewer": {"nothing is delivered before commit"},
    "new-rule-at-once": {"nothing is delivered before commit"},
    "early-promise": {"epochs only grow"},
    "forgotten-promise": {"epochs only grow"},
    "epoch-goes-back": {"epochs only grow"},
    "own-cutting": {"a lost datagram costs no copy", "progress after healing"},
    "cut-in-memory-only": {"epochs grow along every disk"},
    "damaged-is-older": {"a whole disk keeps its vote"},
    "found-disk-votes": {"a blank disk does not vote"},
    "early-acceptance": {"acknowledged is durable"},
    "early-storage": {"acknowledged is durable"},
    "numbered-twice": {"sent once, in the sender's order", "delivery"},
    "any-order": {"sent once, in the sender's order", "delivery"},
    "delivered-twice": {"replica states are equal", "delivery"},
    "delivered-early": {"nothing is delivered before commit"},
    "gap-passed-over": {"no gap at delivery"},
    "collected-unsaved": {"collection never passes what is needed"},
    "collected-from-laggards": {"collection never passes what is needed"},
    "collected-young": {"collection never passes what is needed"},
    "nothing-let-go": {"memory and queues are within bounds"},
    "needed-dropped": {"what a checkpoint needs is kept, and nothing else"},
    "retained-for-ever": {"what a checkpoint needs is kept, and nothing else"},
    "counter-not-checked": {
        "received is what was sent, stored once",
        "first deliveries to an only consumer come in order",
        "clients are served",
        "confirmed is stored, and consumed in the end",
    },
    "counters-not-kept": {"engines are equal", "clients are served"},
    "held-not-claimed": {"a redelivery says so"},
    "return-not-counted": {"a redelivery says so"},
    "confirmed-early": {"confirmed is stored, and consumed in the end"},
    "acknowledged-early": {"acknowledged is in the log, as the client said it"},
    "no-grace": {"a redelivery says so", "first deliveries to an only consumer come in order"},
    "nothing-retained": {"progress after healing"},
    "loose-not-told": {"a redelivery says so", "first deliveries to an only consumer come in order"},
    "requests-not-repeated": {"progress after healing"},
    "done-again": {
        "no unit is created",
        "no unit is lost",
        "rolled back is never seen",
        "a value that was received can be consumed",
    },
    "prepared-not-kept": {"engines are equal", "progress after healing"},
    "consumed-not-checked": {"no unit is created", "no unit is lost"},
    "moved-while-prepared": {"no unit is lost", "progress after healing"},
    "nobody-resolves": {"progress after healing"},
    "late-not-joined": {"progress after healing"},
    "limit-not-kept": {"limits hold"},
    "release-not-told": {"progress after healing"},
    "guest-not-answered": {"progress after healing", "progress at the start"},
    "given-up-goes-on": {"what was in hand is over", "progress after healing"},
    "forsaken-ordered": {"what was in hand is over"},
    "waiting-goes-on": {"what was in hand is over"},
    "not-sent-again": {"progress after healing", "clients are served"},
    "batch-not-remembered": {"staged is seen once, all together", "clients are served"},
    "fragments-not-retained": {"progress after healing"},
    "fragments-not-kept": {
        "engines are equal",
        "what a checkpoint needs is kept, and nothing else",
        "clients are served",
        "bodies are whole",
    },
    "changed-unwritten": {"engines are equal"},
    "consumed-swept": {"what a queue retains is read, each message once", "machines do not raise"},
    "fragments-swept-early": {"bodies are whole"},
    "delayed-overtaken": {"what came back is not overtaken in its group"},
    "earlier-primary-heard": {"what an earlier primary wanted is not done"},
    "replaced-is-gone": {"a value that was received can be consumed"},
    "any-secret": {"nobody is taken over by a stranger", "clients are served"},
    "signet-not-kept": {"engines are equal", "clients are served"},
    "newest-signet": {"clients are served"},
    "heard-again": {"given once, in the sender's order, to whom it was told"},
    "told-to-next-run": {"given once, in the sender's order, to whom it was told"},
    "own-given-back": {"given once, in the sender's order, to whom it was told"},
    "confirmed-untaken": {"acknowledged is taken"},
    "taken-before-given": {"acknowledged is taken"},
    "taken-before-held": {"acknowledged is taken"},
    "any-number-heard": {"acknowledged is taken", "given once, in the sender's order, to whom it was told"},
    "event-names-not-known": {"events are told once, to who wants them"},
    "missed-not-counted": {"nothing is missed that is not counted"},
    "synchronised-too-soon": {
        "a synchronised server has what the other one had",
        "nothing is missed that is not counted",
    },
    "claims-not-freed": {"a function runs once in the cluster"},
    "name-shared": {"a name is of one run"},
    "ring-without-end": {"memory is bounded"},
    "pieces-run-on": {"bodies are whole", "what a checkpoint needs is kept, and nothing else"},
}


@pytest.mark.parametrize("name", QUICK)
def test_a_deliberate_mistake_is_caught_by_the_checker_of_that_promise(name: str) -> None:
    verdict = campaign.hunt(name, SEEDS)
    assert verdict.checker in QUICK[name], verdict


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_something_and_takes_it_back(mutant: Mutant) -> None:
    places = [(owner, name) for owner, name, _ in mutant.patch()]
    before = [owner.__dict__[name] for owner, name in places]
    with mutant.apply():
        assert all(owner.__dict__[name] is not old for (owner, name), old in zip(places, before, strict=True))
    assert [owner.__dict__[name] for owner, name in places] == before


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_takes_what_the_original_takes_so_that_its_mistake_is_not_that_it_raises(mutant: Mutant) -> None:
    for owner, name, mistake in mutant.patch():
        original, replacement = _function(owner.__dict__[name]), _function(mistake)
        if original is not None and replacement is not None:
            expected = inspect.signature(original).parameters.values()
            given = [each for each in expected if each.kind is each.POSITIONAL_OR_KEYWORD]
            named = {each.name: None for each in expected if each.kind is each.KEYWORD_ONLY}
            inspect.signature(replacement).bind(*given, **named)


def _function(attribute: Any) -> Callable[..., Any] | None:
    attribute = getattr(attribute, "__func__", attribute)
    attribute = attribute.fget if isinstance(attribute, property) else attribute
    return attribute if callable(attribute) else None


def test_a_mutant_is_taken_back_when_the_run_raises() -> None:
    mutant = find_mutant("no-fence")
    owner, name, _ = mutant.patch()[0]
    before = owner.__dict__[name]
    with pytest.raises(KeyError), mutant.apply():
        raise KeyError
    assert owner.__dict__[name] is before


def test_every_mutant_has_a_name_of_its_own_and_says_in_a_sentence_what_is_wrong() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 14
    assert all(mutant.description.endswith(".") for mutant in MUTANTS)


def test_a_hunt_ends_at_the_first_seed_that_fails_with_the_mistake_and_is_well_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Station.follow

    def run(seed: int, kind: Kind) -> Result:
        is_mutated = Station.follow is not original
        return Result(seed=seed, failure="x: y" if seed == 6 or (is_mutated and seed == 7) else "", checker="x")

    monkeypatch.setattr(campaign, "run_seed", run)
    verdict = campaign.hunt("no-fence", range(5, 50))
    assert (verdict.seed, verdict.seeds, verdict.is_caught) == (7, 3, True)


def test_a_surviving_mutant_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def hunt_all(seeds: range, *, jobs: int) -> Iterator[campaign.Verdict]:
        for mutant in MUTANTS:
            is_caught = mutant is not MUTANTS[3]
            yield campaign.Verdict(
                mutant=mutant.name,
                description=mutant.description,
                seeds=1 if is_caught else len(seeds),
                seed=1 if is_caught else None,
                checker="a checker" if is_caught else "",
            )

    monkeypatch.setattr(sim, "hunt_all", hunt_all)
    result = CliRunner().invoke(_app(), ["sim", "--mutants"])
    assert result.exit_code == 1
    assert f"{MUTANTS[3].name}: SURVIVED 200 seeds" in result.output
    printed = CliRunner().invoke(_app(), ["sim", "--mutants", "--json"])
    assert [row["mutant"] for row in json.loads(printed.stdout)] == [mutant.name for mutant in MUTANTS]


def _app() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    sim.register(app)
    return app
