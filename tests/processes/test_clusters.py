"""Clusters for users' own tests, with fake nodes in real processes."""

import functools
import os
import signal

import pytest

import alphorn.testing
from alphorn.io.supervisor import Supervisor
from alphorn.model.errors import Misuse, Unavailable
from alphorn.testing import clusters
from tests.node.fake_nodes import fake_command

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _fake_nodes(monkeypatch):
    monkeypatch.setattr(clusters, "Supervisor", functools.partial(Supervisor, command=fake_command))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_cluster_lives_as_long_as_the_block():
    with alphorn.testing.cluster(client_managers=2) as cluster:
        pids = cluster.nodes
        assert sorted(pids) == ["cm1", "cm2", "mm1", "mm2", "ms1", "ms2"]
        assert (pids["ms1"], pids["ms2"]) == (pids["cm1"], pids["cm2"])
        assert all(is_alive(pid) for pid in pids.values())
        assert cluster.url.count(":7700") == 1
        assert cluster.url.count(":7701") == 1
        assert {node["name"] for node in cluster.status()["nodes"]} == set(pids)
        assert cluster.describe("mm1")["mm1"] == {"name": "mm1", "founding": True}
        directory = cluster.directory
        assert (directory / "mm1" / "log.jsonl").exists()
    assert not any(is_alive(pid) for pid in pids.values())
    assert not directory.exists()


def test_everything_ends_when_the_body_raises():
    pids = {}

    def fail():
        with alphorn.testing.cluster(backups=0) as cluster:
            pids.update(cluster.nodes)
            cluster.kill("mm1", signal.SIGSTOP)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sorted(pids) == ["cm1", "mm1", "ms1", "ms2"]
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_node_that_is_killed_stays_down_until_it_is_started_again():
    with alphorn.testing.cluster() as cluster:
        before = cluster.nodes["mm2"]
        cluster.kill("mm2")
        assert cluster.nodes["mm2"] == 0
        with pytest.raises(Misuse, match="node mm2 is down already; restart it first"):
            cluster.kill("mm2")
        cluster.restart("mm2")
        assert cluster.nodes["mm2"] not in (0, before)
        cluster.restart("mm2")
        cluster.wait()
        assert cluster.describe("mm2")["mm2"] == {"name": "mm2", "founding": False}


def test_a_node_that_is_told_to_die_at_a_step_has_heard_it():
    with alphorn.testing.cluster() as cluster:
        cluster.die_at("mm2", "prepared", 3)
        assert (cluster.directory / "mm2.dies").read_text() == "prepared 3"
        cluster.kill("mm2")
        with pytest.raises(Unavailable, match="node mm2 does not run; start it first"):
            cluster.die_at("mm2", "prepared")


def test_a_primary_is_waited_for_while_there_is_none_and_not_without_end(monkeypatch):
    with alphorn.testing.cluster() as cluster:
        assert cluster.primary() == "mm1"
        cluster.kill("mm1")
        monkeypatch.setattr(cluster, "_deadline_s", 0.1)
        with pytest.raises(Unavailable, match="channel-1 has no primary after 0 s; its nodes' logs are in"):
            cluster.primary()


def test_without_a_client_manager_the_state_cannot_be_asked_for():
    with alphorn.testing.cluster() as cluster:
        cluster.kill("cm1", signal.SIGTERM)
        with pytest.raises(Unavailable, match="no Client Manager runs; restart a Client Manager"):
            cluster.status()


def test_an_unknown_node_is_one_sentence():
    with alphorn.testing.cluster(backups=0) as cluster, pytest.raises(Misuse, match="has no node named 'mm7'"):
        cluster.kill("mm7")


def test_a_directory_of_ones_own_is_kept_and_continued(tmp_path):
    for _ in range(2):
        with alphorn.testing.cluster(backups=0, directory=tmp_path) as cluster:
            url = cluster.url
    assert (tmp_path / "mm1" / "starts").read_text().split() == ["founding", "continuing"]
    with alphorn.testing.cluster(backups=0, directory=tmp_path) as cluster:
        assert cluster.url == url


def test_a_cluster_whose_node_cannot_start_says_why_and_leaves_nothing(tmp_path):
    (tmp_path / "mm1.does").write_text("refuse")
    with (
        pytest.raises(Unavailable, match="node mm1 ended with exit code 1: mm1 cannot start on this disk"),
        alphorn.testing.cluster(directory=tmp_path),
    ):
        pass


def test_a_node_that_hangs_at_its_start_is_not_waited_for_without_end(tmp_path):
    (tmp_path / "mm1.does").write_text("hang")
    with (
        pytest.raises(Unavailable, match=r"node mm1 \(pid \d+\) does not take part after 0 s; see .*log.jsonl"),
        alphorn.testing.cluster(directory=tmp_path, deadline_s=0.2),
    ):
        pass


def test_clusters_run_beside_each_other():
    with alphorn.testing.cluster(backups=0) as one, alphorn.testing.cluster(backups=0) as other:
        assert one.url != other.url
        assert not set(one.nodes.values()) & set(other.nodes.values())
