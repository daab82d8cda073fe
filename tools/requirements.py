"""Which rows of docs/requirements.md have a test that proves them: `make requirements`.

The rows are read from the page's tables, the tests from pytest's own collection: a test proves the rows that its
`requirement` marker names, unless it is marked to be skipped or to fail. Whether the tests pass is `make test`'s
business. Exit code 1 when a test names a row that does not exist, or when tests cannot be collected.
"""

import argparse
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"

_ROW = re.compile(r"\| ([A-Z]+-[1-9][0-9]*) \| (.+) \|")


class Row(NamedTuple):
    """One requirement."""

    id: str
    section: str
    text: str


class Proofs:
    """A pytest plugin that notes which collected tests name which rows."""

    def __init__(self) -> None:
        self.tests_of: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for row in ids_named_by(item):
                if is_proof(item):
                    self.tests_of.setdefault(row, []).append(item.nodeid)


def read_rows(page: str) -> list[Row]:
    """The rows of the page's tables, in its order."""
    rows: list[Row] = []
    section = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        elif found := _ROW.fullmatch(line.strip()):
            rows.append(Row(found[1], section, found[2].replace("\\|", "|")))
    return rows


def ids_named_by(item: pytest.Item) -> Iterator[str]:
    """The rows that a test, its class and its module name."""
    for marker in item.iter_markers("requirement"):
        yield from marker.args


def is_proof(item: pytest.Item) -> bool:
    """A test that is skipped whatever happens, or expected to fail, proves nothing."""
    return item.get_closest_marker("skip") is None and item.get_closest_marker("xfail") is None


def collect(paths: Iterable[str]) -> tuple[dict[str, list[str]], str]:
    """The tests that name each row; and what pytest said when it could not collect."""
    proofs = Proofs()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "-q", f"--rootdir={ROOT}", *paths], plugins=[proofs])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return {}, said.getvalue()
    return proofs.tests_of, ""


def show(rows: list[Row], tests_of: dict[str, list[str]], console: Console) -> None:
    """Every row by section, then one line of numbers per section."""
    sections = list(dict.fromkeys(row.section for row in rows))
    numbers = Table("section", "proved", "unproved", title="requirements with a test that proves them")
    for section in sections:
        table = Table("id", "", "requirement", "tests", title=section, title_justify="left", expand=True)
        members = [row for row in rows if row.section == section]
        for row in members:
            tests = tests_of.get(row.id, [])
            state = "[green]proved[/]" if tests else "[red]unproved[/]"
            names = dict.fromkeys(test.partition("::")[2].partition("[")[0] for test in tests)
            table.add_row(row.id, state, escape(row.text), "\n".join(names))
        proved = sum(row.id in tests_of for row in members)
        numbers.add_row(section, str(proved), str(len(members) - proved))
        console.print(table)
    proved = sum(row.id in tests_of for row in rows)
    numbers.add_section()
    numbers.add_row("all", str(proved), str(len(rows) - proved))
    console.print(numbers)


def main() -> int:
    """Prints the tables, or with --json the rows and the tests of each."""
    parser = argparse.ArgumentParser(
        prog="requirements", description="Which requirements have a test that proves them."
    )
    parser.add_argument("--json", action="store_true", help="print every row with its tests, for programs")
    parser.add_argument("paths", nargs="*", help="where to look for tests; everywhere by default")
    options = parser.parse_args()
    rows = read_rows(PAGE.read_text(encoding="utf-8"))
    tests_of, fault = collect(options.paths)
    if fault:
        print(fault, file=sys.stderr)
        print("the tests cannot be collected; repair what pytest names above, then run this again", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([row._asdict() | {"tests": tests_of.get(row.id, [])} for row in rows], indent=2))
    else:
        show(rows, tests_of, Console())
    unknown = sorted(tests_of.keys() - {row.id for row in rows})
    for name in unknown:
        print(f"{tests_of[name][0]} names {name}, which is no row of docs/requirements.md", file=sys.stderr)
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
