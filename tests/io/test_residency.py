import mmap
import os
from pathlib import Path

import pytest

from alphorn.io.residency import MappedFile

SIZE = 8 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_pages_that_were_read_are_given_back_and_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        known = MappedFile(path)
        assert known.is_known
        view = memoryview(mapped)
        assert sum(view[:: mmap.PAGESIZE]) == 0
        before = resident_bytes()
        known.release()
        assert before - resident_bytes() > SIZE // 2
        assert bytes(view[SIZE - 256 :]) == bytes(range(256))
        view.release()


def test_a_file_that_is_not_mapped_has_nothing_to_give_back(tmp_path: Path) -> None:
    known = MappedFile(tmp_path / "nowhere")
    assert not known.is_known
    known.release()
    known.read_on(memoryview(b"anything"))
    known.close()


def test_what_follows_is_asked_for_while_it_is_not_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    path = tmp_path / "data"
    path.write_bytes(bytes(SIZE))
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *what: asked.append(what))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        known = MappedFile(path)
        view = memoryview(mapped)
        known.read_on(view[5000:9000])
        assert asked == [], "it was written a moment ago"
        monkeypatch.setattr(MappedFile, "_is_in_memory", lambda *_: False)
        known.read_on(view[5000:9000])
        known.read_on(view[SIZE - 10 :])  # nothing follows
        known.read_on(memoryview(bytes(4000)))  # of no map
        assert asked == [(9000, 4 << 20, os.POSIX_FADV_WILLNEED)]
        known.close()
        known.read_on(view[5000:9000])
        assert len(asked) == 1
        view.release()
