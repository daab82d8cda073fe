"""Functions that run once in the cluster: what is promised of them."""

from alphorn.testing.servers.facts import NEVER, TURN_S, Competition, Facts, ProcessRun, ServerRun
from alphorn.testing.watch import Violation

LAPSE_S = 1.5  # whom a server lacks for so long it may soon take for gone


class RunsOnce:
    """A function runs once in the cluster, unless its runner was gone before it said that it is done."""

    name = "a function runs once in the cluster"

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        facts.watch.won.append(self._on_won)
        facts.watch.finished.append(self._judge)

    def _on_won(self, competition: Competition, winner: ProcessRun) -> None:
        runner = competition.runner
        for server in winner.joined.values():
            finished_at = server.finished.get(competition.key, NEVER)
            granted_at = server.granted.get((winner, competition.key), self._facts.now)
            if server.is_alive and finished_at < granted_at - TURN_S:
                self._object(competition, winner, f"{server} was told that it is done")
        if runner is winner:
            self._object(competition, winner, "has run it before")
        if runner is None or not runner.is_alive:
            return
        for server, since in competition.known.items():
            if server.is_alive and server in winner.joined.values() and self._has_kept(server, runner, since):
                self._object(competition, winner, f"{server} knows that {runner} is to do it, and has {runner}")

    @staticmethod
    def _has_kept(server: ServerRun, runner: ProcessRun, since: float) -> bool:
        return runner in server.joined.values() and server.lapsed.get(runner, -1.0) < since

    def _judge(self) -> None:
        for competition in self._facts.competitions.values():
            if competition.completed_at < float("inf"):
                continue
            if any(process.is_alive for process in competition.competitors):
                raise Violation(
                    self.name, f"{_text(competition)} has not run, and {competition.competitors} wanted to run it"
                )

    def _object(self, competition: Competition, winner: ProcessRun, why: str) -> None:
        raise Violation(self.name, f"{winner} runs {_text(competition)}, and {why}")


def _text(competition: Competition) -> str:
    return competition.key[:3].hex()
