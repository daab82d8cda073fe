import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.requirements import PAGE, ROOT, Row, read_rows

PAGE_SAMPLE = r"""
# Requirements
## Bus
| id | requirement |
| --- | --- |
| BUS-1 | One order. |
| BUS-2 | `a\|b` works. |
## Ids
| ID-1 | Unique. |
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    command += ["-c", str(ROOT / "pyproject.toml"), f"--confcutdir={folder}", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the project's conftest, for tests of tests."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    return tmp_path


def test_rows_are_read_with_their_sections() -> None:
    assert read_rows(PAGE_SAMPLE) == [
        Row("BUS-1", "Bus", "One order."),
        Row("BUS-2", "Bus", "`a|b` works."),
        Row("ID-1", "Ids", "Unique."),
    ]


def test_ids_on_the_page_are_unique_and_complete() -> None:
    ids = [row.id for row in read_rows(PAGE.read_text(encoding="utf-8"))]
    assert len(ids) == len(set(ids))
    numbers_of: dict[str, list[int]] = {}
    for row in ids:
        kind, number = row.split("-")
        numbers_of.setdefault(kind, []).append(int(number))
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in numbers_of.values())


def test_a_test_that_names_a_known_row_passes(folder: Path) -> None:
    sample = 'import pytest\n\n@pytest.mark.requirement("BUS-1")\ndef test_it(): pass\n'
    (folder / "test_sample.py").write_text(sample)
    assert run_pytest(folder).returncode == 0


def test_a_test_that_names_an_unknown_row_is_an_error(folder: Path) -> None:
    sample = 'import pytest\n\n@pytest.mark.requirement("BUS-1", "BUS-999")\ndef test_it(): pass\n'
    (folder / "test_sample.py").write_text(sample)
    ended = run_pytest(folder)
    assert ended.returncode == 1
    assert "BUS-999 is no row of docs/requirements.md" in ended.stdout
    assert "1 error" in ended.stdout


def test_the_report_counts_tests_that_run_and_names_unknown_rows(folder: Path) -> None:
    sample = """
import pytest

@pytest.mark.requirement("BUS-1")
def test_it(): pass

@pytest.mark.requirement("BUS-2")
@pytest.mark.skip(reason="sample")
def test_skipped(): pass

@pytest.mark.requirement("BUS-999")
def test_wrong(): pass
"""
    (folder / "test_sample.py").write_text(sample)
    command = [sys.executable, "-m", "tools.requirements", "--json", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    proved = [row["id"] for row in json.loads(ended.stdout) if row["tests"]]
    assert proved == ["BUS-1"]
    assert "names BUS-999" in ended.stderr
    assert ended.returncode == 1
