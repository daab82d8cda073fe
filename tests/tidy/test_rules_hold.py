"""The rules of this folder, applied to the whole repository."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from tests.tidy.habits import faults_of_module_state, faults_of_reminders, faults_of_size, faults_of_test_names
from tests.tidy.purity import faults_of_purity
from tests.tidy.rooms import faults_of_imports

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OTHERS = sorted(path for folder in ("tools", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"])

Rule = Callable[[PurePath, str], list[str]]


def faults(rule: Rule, paths: list[Path], root: Path = ROOT) -> list[str]:
    return [fault for path in paths for fault in rule(path.relative_to(root), path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("rule", [faults_of_imports, faults_of_purity], ids=lambda rule: rule.__name__)
def test_rooms_keep_the_architecture(rule: Rule) -> None:
    assert faults(rule, SOURCE, ROOT / "src") == []


def test_modules_hold_no_state() -> None:
    assert faults(faults_of_module_state, SOURCE) == []


def test_modules_stay_short() -> None:
    assert faults(faults_of_size, SOURCE + TESTS + OTHERS) == []


def test_no_reminder_ships() -> None:
    assert faults(faults_of_reminders, SOURCE + TESTS + OTHERS + PAGES) == []


def test_test_names_do_not_end_in_numbers() -> None:
    assert faults(faults_of_test_names, TESTS) == []


def test_every_direct_dependency_is_pinned_alike_in_both_places() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted, page in ((project["dependencies"], "core"), (project["optional-dependencies"]["dev"], "dev")):
        pinned = (ROOT / "requirements" / f"{page}.txt").read_text().splitlines()
        assert [line for line in wanted if line not in pinned] == []


def test_requirements_name_no_address_of_a_registry() -> None:
    lines = [line for path in (ROOT / "requirements").glob("*.txt") for line in path.read_text().splitlines()]
    allowed = re.compile(r"#.*|-r (core|spark)\.txt|[a-z0-9-]+==[0-9][0-9a-z.]*")
    assert [line for line in lines if not allowed.fullmatch(line)] == []
