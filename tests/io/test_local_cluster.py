import os
import socket
import tomllib
from pathlib import Path

import msgspec
import pytest

from alphorn.bus.config import Role
from alphorn.io.cluster_file import read_cluster_file
from alphorn.io.local_cluster import (
    FILE_NAME,
    LocalShape,
    Wish,
    check_ports,
    lay_out,
    open_local_cluster,
    shape_of,
    take_directory,
    url_of,
    write_cluster_file,
)
from alphorn.model.errors import Misuse, Unavailable

HOST = f"127.{os.getpid() % 200 + 1}.7.9"  # no other test's


def made(directory, **wish):
    path, _ = open_local_cluster(directory, Wish(**wish), default=LocalShape(), host=HOST)
    return read_cluster_file(path)


def test_a_new_directory_gets_one_client_manager_a_primary_and_a_backup(tmp_path):
    file = made(tmp_path)
    assert [(node.name, node.kind) for node in file.nodes] == [
        ("mm1", "message_manager"),
        ("mm2", "message_manager"),
        ("cm1", "client_manager"),
        ("ms1", "message_server"),
        ("ms2", "message_server"),
    ]
    assert url_of(file) == f"alphorn://{HOST}:7700"
    assert file.directory == str(tmp_path)


@pytest.mark.parametrize("backups", range(5))
@pytest.mark.parametrize("client_managers", [1, 3])
def test_every_channel_has_an_odd_number_of_voters(tmp_path, backups, client_managers):
    file = made(tmp_path, backups=backups, client_managers=client_managers, channels=2)
    for number in range(2):
        config = file.group(number)
        config.check()
        voters = [member for member in config.members if Role.COMMIT in member.roles]
        assert len(voters) % 2 == 1
        assert len(voters) <= backups + 2


def test_no_two_uses_share_a_port_and_all_move_with_the_base_port(tmp_path):
    file = lay_out(tmp_path, LocalShape(client_managers=20, backups=1, channels=10, base_port=9000))
    addresses = [
        getattr(node, field) for node in file.nodes for field in ("bus", "link", "clients", "http", "internal")
    ]
    addresses = [address for address in addresses if address]
    addresses += [member.address for number in range(10) for member in file.group(number).members[2:]]
    assert len(set(addresses)) == len(addresses)
    assert {int(address.rpartition(":")[2]) // 200 for address in addresses} == {45}


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (LocalShape(client_managers=0), "1 to 20 Client Managers, not 0"),
        (LocalShape(backups=-1), "no channel has less than 0 backups"),
        (LocalShape(channels=11), "22 Message Managers"),
        (LocalShape(base_port=65_500), "the base port is 1 to"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(tmp_path, shape, reason):
    with pytest.raises(Misuse, match=reason):
        lay_out(tmp_path, shape)


def test_clusters_in_other_directories_or_on_other_ports_have_other_groups(tmp_path):
    shapes = [LocalShape(channels=3), LocalShape(channels=3, base_port=8800)]
    files = [lay_out(tmp_path / name, shape) for name in "ab" for shape in shapes]
    groups = [channel.group for file in files for channel in file.channels]
    assert len(set(groups)) == len(groups)
    assert all(0 < group <= 0xFFFF_FFFF for group in groups)


def test_the_file_reads_back_as_it_was_written(tmp_path):
    directory = tmp_path / 'a "strange" \\ näme'
    file = lay_out(directory, LocalShape(client_managers=2, channels=2))
    write_cluster_file(directory / "cluster.toml", file)
    read = read_cluster_file(directory / "cluster.toml")
    assert (read.name, read.channels, read.nodes) == (file.name, file.channels, file.nodes)
    assert read.directory == str(directory)


def test_a_directory_keeps_its_cluster_when_it_is_moved(tmp_path):
    before = made(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    after = made(tmp_path / "new")
    assert (after.channels, after.nodes) == (before.channels, before.nodes)
    assert after.directory == str(tmp_path / "new")


@pytest.mark.parametrize("wish", [{"backups": 2}, {"channels": 2}, {"base_port": 8800}])
def test_what_a_cluster_was_founded_with_cannot_be_changed(tmp_path, wish):
    made(tmp_path)
    option = "--" + next(iter(wish)).replace("_", "-")
    with pytest.raises(Misuse, match=f"{option} .* cannot become .* leave {option} out, or choose another --dir"):
        made(tmp_path, **wish)


def test_the_same_wish_again_is_no_change(tmp_path):
    before = made(tmp_path, client_managers=2, backups=0, base_port=8800)
    assert made(tmp_path, client_managers=2, backups=0, base_port=8800) == before


def test_client_managers_may_come_and_go(tmp_path):
    before = made(tmp_path)
    after = made(tmp_path, client_managers=3)
    assert shape_of(after).client_managers == 3
    assert after.channels == before.channels
    assert after.group(0) == before.group(0)
    assert made(tmp_path) == after


def test_a_directory_runs_one_cluster_at_a_time(tmp_path):
    lock = take_directory(tmp_path)
    with pytest.raises(Misuse, match=f"runs already, by process {os.getpid()}; stop that one"):
        take_directory(tmp_path)
    os.close(lock)
    os.close(take_directory(tmp_path))


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Misuse, match="cannot be used: Not a directory; choose another --dir"):
        take_directory(tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("kind", "port", "use"),
    [
        (socket.SOCK_STREAM, 7700, "clients of cm1"),
        (socket.SOCK_DGRAM, 7721, "bus of mm2"),
        (socket.SOCK_STREAM, 7741, "link of mm2"),
        (socket.SOCK_DGRAM, 7760, "witness of channel-1"),
    ],
)
def test_a_taken_port_is_named(tmp_path, kind, port, use):
    file = made(tmp_path)
    check_ports(file)
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind((HOST, port))
        if kind == socket.SOCK_STREAM:
            other.listen()
        with pytest.raises(Unavailable, match=rf"taken by another program: {HOST}:{port} \({use}\)"):
            check_ports(file)


@pytest.mark.parametrize("option", ["--base-port", "--port"])
def test_a_taken_port_leaves_a_new_directory_free_for_other_ports(tmp_path, option):
    with socket.socket() as other:
        other.bind((HOST, 7741))
        other.listen()
        with pytest.raises(Unavailable, match=f"end that program, or choose another {option}$"):
            open_local_cluster(tmp_path, Wish(), default=LocalShape(), host=HOST, port_option=option)
        assert url_of(made(tmp_path, base_port=8800)) == f"alphorn://{HOST}:8800"


def test_a_taken_port_of_a_cluster_that_exists_cannot_be_changed_and_nobody_says_that_it_can(tmp_path):
    file = made(tmp_path)
    with socket.socket() as other:
        other.bind((HOST, 7741))
        other.listen()
        with pytest.raises(Unavailable, match="or choose another --dir for a cluster on other ports"):
            check_ports(file)


def test_the_written_file_is_plain_toml_with_a_comment(tmp_path):
    made(tmp_path)
    text = (tmp_path / "cluster.toml").read_text()
    assert text.startswith("# The nodes of this cluster")
    assert tomllib.loads(text)["nodes"][2] == {
        "name": "cm1",
        "kind": "client_manager",
        "clients": f"{HOST}:7700",
        "http": f"{HOST}:7800",
        "witness": f"{HOST}:7760",
        "process": "cm1",
    }


def test_the_example_is_a_cluster_file_with_an_odd_number_of_voters():
    file = read_cluster_file(Path(__file__).resolve().parent.parent.parent / "examples" / "cluster.toml")
    config = file.group(0)
    config.check()
    assert [member.name for member in config.members if Role.COMMIT in member.roles] == ["mm1", "mm2", "cm1"]


def test_together_a_client_manager_is_beside_each_message_manager_as_far_as_they_go_and_the_witness_apart(tmp_path):
    file = made(tmp_path, client_managers=3, channels=2, together=True)
    assert [[node.name for node in file.beside(name)] for name in ("cm1", "mm4", "cm3", "w1")] == [
        ["ms1", "mm1", "mm3", "cm1"],
        ["ms2", "mm2", "mm4", "cm2"],
        ["cm3"],
        ["w1"],
    ]
    for number in range(2):
        config = file.group(number)
        config.check()
        assert sum(Role.COMMIT in member.roles for member in config.members) == 3
    assert shape_of(file).together
    assert [node.name for node in file.nodes if file.has_guest(node)] == [
        "mm1",
        "mm2",
        "mm3",
        "mm4",
        "cm1",
        "cm2",
        "cm3",
        "ms1",
        "ms2",
    ]
    check_ports(file)


def test_together_an_odd_number_of_message_managers_needs_no_witness(tmp_path):
    file = made(tmp_path, backups=2, together=True)
    assert [node.name for node in file.nodes] == ["mm1", "mm2", "mm3", "cm1", "ms1", "ms2"]


@pytest.mark.parametrize(
    ("shape", "hosts"),
    [
        ({}, {"ms1": ["cm1"], "ms2": ["mm2"]}),
        ({"backups": 0}, {"ms1": ["cm1"], "ms2": ["mm1"]}),
        ({"client_managers": 3, "channels": 2}, {"ms1": ["cm1"], "ms2": ["cm2"]}),
        ({"together": True}, {"ms1": ["mm1", "cm1"], "ms2": ["mm2"]}),
        ({"together": True, "client_managers": 2}, {"ms1": ["mm1", "cm1"], "ms2": ["mm2", "cm2"]}),
        ({"together": True, "backups": 0}, {"ms1": ["mm1", "cm1"]}),
    ],
)
def test_message_servers_are_in_processes_that_there_are_anyway_and_two_where_there_are_two(tmp_path, shape, hosts):
    file = made(tmp_path, **shape)
    assert {
        server.name: [node.name for node in file.beside(server.name) if node is not server]
        for server in file.message_servers
    } == hosts
    assert [server.internal for server in file.message_servers] == [f"{HOST}:{7820 + n}" for n in range(len(hosts))]
    assert shape_of(file).together is shape.get("together", False)


def without_message_servers(file):
    nodes = tuple(msgspec.structs.replace(node, process="") for node in file.nodes if node.kind != "message_server")
    return msgspec.structs.replace(file, directory=".", nodes=nodes)


def test_a_directory_of_an_earlier_version_gets_message_servers_and_keeps_all_else(tmp_path):
    made(tmp_path)
    before = without_message_servers(read_cluster_file(tmp_path / FILE_NAME))
    before = msgspec.structs.replace(before, destinations_max=7)
    write_cluster_file(tmp_path / FILE_NAME, before)
    after = made(tmp_path)
    assert [(node.name, node.process) for node in after.message_servers] == [("ms1", "cm1"), ("ms2", "mm2")]
    assert after.destinations_max == 7
    assert without_message_servers(after) == before
    assert [after.group(0)] == [before.group(0)]
    assert made(tmp_path) == after


def test_where_message_servers_have_no_ports_a_cluster_goes_without(tmp_path):
    file = made(tmp_path, base_port=65_410)
    assert file.message_servers == []
    assert made(tmp_path) == file


@pytest.mark.parametrize("before", [True, False])
def test_a_cluster_that_exists_is_not_put_together_or_taken_apart(tmp_path, *, before):
    made(tmp_path, together=before)
    with pytest.raises(Misuse, match=f"was made with --together {before}, which cannot become {not before}"):
        made(tmp_path, together=not before)
    assert made(tmp_path, client_managers=2).client_managers[1].name == "cm2"


@pytest.mark.parametrize(
    ("processes", "fault"),
    [
        ({"mm1": "a", "mm2": "a"}, "process a has two message_managers of one channel: both would be lost at once"),
        ({"mm1": "a", "cm1": "a"}, "process a has a message_manager and a witness: both would be lost at once"),
        ({"cm1": "a", "cm2": "a"}, "process a has two client_managers: one of them is enough"),
    ],
)
def test_nodes_that_must_not_die_together_do_not_share_a_process(tmp_path, processes, fault):
    file = lay_out(tmp_path, LocalShape(client_managers=2))
    nodes = tuple(msgspec.structs.replace(node, process=processes.get(node.name, "")) for node in file.nodes)
    with pytest.raises(Misuse, match=fault):
        msgspec.structs.replace(file, nodes=nodes).check()


@pytest.mark.parametrize("together", [False, True])
def test_what_was_written_into_the_file_by_hand_stays_when_client_managers_come_and_go(tmp_path, together):
    file = made(tmp_path, client_managers=2, together=together)
    limits = {"mm1": {"store_bytes_max": 1 << 30}, "cm1": {"session_bytes_max": 1 << 20, "http": ""}}
    nodes = tuple(msgspec.structs.replace(node, **limits.get(node.name, {})) for node in file.nodes)
    write_cluster_file(tmp_path / FILE_NAME, msgspec.structs.replace(file, directory=".", nodes=nodes))
    for count in (3, 1, 2):
        found = made(tmp_path, client_managers=count)
        assert len(found.client_managers) == count
        for name, fields in limits.items():
            assert {field: getattr(found.node(name), field) for field in fields} == fields
    assert found.nodes == nodes
