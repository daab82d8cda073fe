"""What patterns cost a Client Manager: a new destination among many patterns, a new pattern among many destinations.

    python benchmarks/patterns.py [--patterns 10000] [--destinations 100000] [--json]

Figures are CPU time of this process. Names are new to the index each time, so automata find no state prepared for them.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from alphorn.client_manager.catalogue import Catalogue, Name
from alphorn.model.destinations import Destination, DestinationKind
from alphorn.model.levels import LevelTrie
from alphorn.model.pattern_index import PatternIndex, matcher_of
from alphorn.model.patterns import Pattern, glob, regex

NAMES = 2_000
ADDED_EVERY = 10  # patterns between two new destinations while patterns are added
PAGE = 2_000

MAKERS: dict[str, Callable[[int], Pattern]] = {
    "prices.12.*": lambda n: glob(f"prices.{n}.*"),
    "*.12.close": lambda n: glob(f"*.{n}.close"),
    "prices.*.12.*": lambda n: glob(f"prices.*.{n}.*"),
    "regex": lambda n: regex(rf"prices\.(eu|us)\.{n}\..+"),
}


def destination(name: str) -> Destination:
    return Destination(DestinationKind.TOPIC, name)


def new_names(patterns: int) -> list[Destination]:
    """Names of which each matches one or two of so many patterns."""
    return [destination(f"prices.{n * 7919 % patterns}.{n}.{n * 31 % patterns}.close") for n in range(NAMES)]


def cost_of(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def measure_destination(patterns: int) -> dict[str, float]:
    """A new destination is compared with so many patterns, of one form and of all."""
    found = {}
    forms = {form: [maker] for form, maker in MAKERS.items()} | {"all": list(MAKERS.values())}
    for form, makers in forms.items():
        index: PatternIndex[int] = PatternIndex()
        for number in range(patterns):
            index.add(number, makers[number % len(makers)](number))
        index.match(destination("warm"))
        names = new_names(patterns)
        found[form] = round(1e6 * cost_of(lambda: [index.match(name) for name in names]) / NAMES, 1)  # noqa: B023
    return found


def measure_adding(patterns: int) -> float:
    """Microseconds of one pattern when so many come, with a new destination now and then."""
    index: PatternIndex[int] = PatternIndex()
    makers = list(MAKERS.values())

    def add_all() -> None:
        for number in range(patterns):
            index.add(number, makers[number % len(makers)](number))
            if number % ADDED_EVERY == 0:
                index.match(destination(f"prices.{number}"))

    return round(1e6 * cost_of(add_all) / patterns, 1)


def pages(catalogue: Catalogue, pattern: Pattern) -> Iterator[list[Name]]:
    after = None
    while page := catalogue.page(pattern.bounds, after, PAGE):
        yield page
        if len(page) < PAGE:
            return
        after = page[-1]


def measure_pattern(destinations: int) -> dict[str, float]:
    """Milliseconds to compare a new pattern with so many destinations, of which it matches ten."""
    catalogue = Catalogue()
    for number in range(destinations):
        catalogue.add(number, destination(f"prices.{number // 10:06}.{number % 10}"))
    catalogue.page(None, None, 1)
    found = {}
    for form, pattern in {
        "prices.000000.*": glob("prices.000000.*"),
        "*.000000.?": glob("*.000000.?"),
        "regex": regex(r".*\.0{6}\.[0-9]"),
    }.items():
        matches = matcher_of(pattern)

        def compare(matches: Callable[[str], bool] = matches, pattern: Pattern = pattern) -> int:
            return sum(matches(name) for page in pages(catalogue, pattern) for name, _ in page)

        assert compare() == min(10, destinations)
        found[form] = round(1e3 * cost_of(compare), 2)
    return found


def measure_levels(filters: int) -> float:
    """Microseconds of a name among so many level filters."""
    trie: LevelTrie[int] = LevelTrie()
    for number in range(filters):
        trie.add([f"prices/{number}/#", f"+/{number}/close", f"prices/+/{number}"][number % 3], number)
    names = [f"prices/{n * 7919 % filters}/{n}/{n * 31 % filters}/close" for n in range(NAMES)]
    return round(1e6 * cost_of(lambda: [trie.match(name) for name in names]) / NAMES, 1)


def steps(largest: int, smallest: int = 10) -> list[int]:
    found = [smallest]
    while found[-1] * 10 <= largest:
        found.append(found[-1] * 10)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patterns", type=int, default=10_000)
    parser.add_argument("--destinations", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    result = {
        "destination_us": {count: measure_destination(count) for count in steps(chosen.patterns)},
        "adding_us": {count: measure_adding(count) for count in steps(chosen.patterns)},
        "levels_us": {count: measure_levels(count) for count in steps(chosen.patterns)},
        "pattern_ms": {count: measure_pattern(count) for count in steps(chosen.destinations)},
    }
    if chosen.json:
        print(json.dumps(result))
        return
    console = Console()
    for title, rows in result.items():
        table = Table(title=title.replace("_", ", "), title_justify="left")
        first = next(iter(rows.values()))
        columns = list(first) if isinstance(first, dict) else [title]
        for column in ("count", *columns):
            table.add_column(column, justify="right")
        for count, row in rows.items():
            values = row.values() if isinstance(row, dict) else [row]
            table.add_row(f"{count:,}", *map(str, values))
        console.print(table)


if __name__ == "__main__":
    main()
