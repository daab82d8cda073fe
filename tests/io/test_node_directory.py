import fcntl
import os

import pytest

from alphorn.io.node_directory import NodeDirectory
from alphorn.model.errors import Misuse


def test_a_node_that_was_founded_stays_founded_when_its_disk_is_wiped(tmp_path):
    directory = NodeDirectory(tmp_path, "mm1")
    assert not directory.is_founded
    directory.take()
    directory.mark_founded()
    directory.release()
    for path in directory.folder.iterdir():
        path.unlink()
    directory.folder.rmdir()
    assert NodeDirectory(tmp_path, "mm1").is_founded


def test_a_folder_with_nothing_but_logs_is_blank(tmp_path):
    directory = NodeDirectory(tmp_path, "mm1")
    directory.take()
    assert directory.was_blank
    directory.release()
    directory.log.with_name("log.jsonl.1").touch()
    directory.take()
    assert directory.was_blank
    directory.release()
    (directory.folder / "data.mdb").touch()
    directory.take()
    assert not directory.was_blank
    directory.release()


def test_a_node_runs_in_one_process_at_a_time(tmp_path):
    first, second = NodeDirectory(tmp_path, "mm1"), NodeDirectory(tmp_path, "mm1")
    assert second.holder() == 0
    first.take()
    assert second.holder() == os.getpid()
    with pytest.raises(Misuse, match=f"mm1 runs already in .*, as process {os.getpid()}; stop that one first"):
        second.take()
    first.release()
    assert second.holder() == 0
    second.take()
    second.release()


@pytest.mark.parametrize("look", ["fcntl", "flock"])
def test_a_node_starts_although_somebody_is_just_looking_who_runs_it(tmp_path, monkeypatch, look):
    node, watcher = NodeDirectory(tmp_path, "mm1"), NodeDirectory(tmp_path, "mm1")
    node.take()
    node.release()
    real = getattr(fcntl, look)

    def start_meanwhile(*arguments: object) -> object:
        monkeypatch.undo()
        answer = real(*arguments)
        node.take()  # the watcher has its answer and still has the file open
        return answer

    monkeypatch.setattr(fcntl, look, start_meanwhile)
    assert watcher.holder() == 0
    monkeypatch.undo()
    node.release()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Misuse, match="of node mm1 cannot be used: Not a directory"):
        NodeDirectory(tmp_path / "file", "mm1").take()
