"""What holds for every test: the `requirement` marker names rows that exist, and random tests replay."""

import hypothesis
import pytest

from tools.requirements import PAGE, ids_named_by, read_rows

# The same examples at every run, and no limit on how long one takes: the machine's load must not decide a test.
hypothesis.settings.register_profile("alphorn", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("alphorn")

KNOWN_ROWS = frozenset(row.id for row in read_rows(PAGE.read_text(encoding="utf-8")))


def pytest_runtest_setup(item: pytest.Item) -> None:
    unknown = [row for row in ids_named_by(item) if row not in KNOWN_ROWS]
    if unknown:
        pytest.fail(f"{', '.join(unknown)} is no row of docs/requirements.md; name one that is", pytrace=False)
