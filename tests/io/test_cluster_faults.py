"""Cluster files that cannot work, or would harm: each fault is refused by name before anything is started."""

import msgspec
import pytest

from alphorn.io.addresses import find_interface
from alphorn.io.cluster_file import ClusterFile, read_cluster_file
from alphorn.io.local_cluster import LocalShape, lay_out, write_cluster_file
from alphorn.model.errors import Misuse


@pytest.fixture
def file(tmp_path) -> ClusterFile:
    return lay_out(tmp_path, LocalShape(client_managers=2, channels=2))


def changed(file: ClusterFile, name: str, /, **fields: object) -> ClusterFile:
    nodes = tuple(msgspec.structs.replace(node, **fields) if node.name == name else node for node in file.nodes)
    return msgspec.structs.replace(file, nodes=nodes)


def regrouped(file: ClusterFile, *groups: int) -> ClusterFile:
    channels = zip(file.channels, groups, strict=True)
    return msgspec.structs.replace(
        file, channels=tuple(msgspec.structs.replace(channel, group=group) for channel, group in channels)
    )


def test_what_up_lays_out_has_no_fault(file):
    file.check()
    file.check_new()


@pytest.mark.parametrize("group", [-1, 1 << 32])
def test_a_group_that_is_no_32_bit_number_is_refused(file, group):
    with pytest.raises(Misuse, match=f"group of channel channel-1 is {group}; write a number from 0 to 4294967295"):
        regrouped(file, group, 7).check()


def test_two_channels_of_one_group_are_refused(file):
    with pytest.raises(Misuse, match="channels channel-1 and channel-2 have both the group 7"):
        regrouped(file, 7, 7).check()


@pytest.mark.parametrize("name", ["../evil", "a/b", "/etc", ".", "..", "", "a\nb", "a\0b", "x" * 300])
def test_a_node_whose_name_is_no_plain_file_name_is_refused(file, name):
    with pytest.raises(Misuse, match="cannot have a folder of that name"):
        changed(file, "mm1", name=name).check()


@pytest.mark.parametrize(
    ("name", "fields", "fault"),
    [
        ("mm2", {"bus": "127.0.0.1:7720"}, "bus of mm1 and bus of mm2 are both 127.0.0.1:7720"),
        ("mm2", {"link": "127.0.0.1:7720"}, "bus of mm1 and link of mm2 are both 127.0.0.1:7720"),
        ("cm2", {"clients": "127.0.0.1:7800"}, "http of cm1 and clients of cm2 are both 127.0.0.1:7800"),
        (
            "cm2",
            {"http": "127.0.0.1:7761"},
            "witness of cm1 for channel channel-2 and http of cm2 are both 127.0.0.1:7761",
        ),
    ],
)
def test_two_nodes_with_one_address_are_refused(file, name, fields, fault):
    with pytest.raises(Misuse, match=fault):
        changed(file, name, **fields).check()


@pytest.mark.parametrize(
    ("name", "fields", "fault"),
    [
        ("mm1", {"bus": "localhost:7720"}, r"bus of node mm1 is 'localhost:7720'; write an IPv4 address, like"),
        ("cm1", {"witness": "host:7760"}, r"witness of node cm1 is 'host:7760'; write an IPv4 address, like"),
        ("cm1", {"clients": "host:7700"}, r"clients of node cm1 is 'host:7700'; write an IPv4 address, like"),
        ("cm1", {"hosts": ("host",)}, r"hosts of node cm1 has 'host'; write an IPv4 address"),
        ("mm1", {"further_buses": ("host:1",)}, r"further_buses of node mm1 has 'host:1'; write an IPv4"),
        ("mm1", {"link": "127.0.0.1:70000"}, r"link of node mm1 is '127.0.0.1:70000'; write host:port"),
        ("mm1", {"link": ":7740"}, r"link of node mm1 is ':7740'; write host:port"),
        ("mm1", {"bus": "127.0.0.1:0"}, r"bus of node mm1 is '127.0.0.1:0', where nobody would find it; choose a port"),
        ("mm1", {"link": "127.0.0.1:0"}, r"link of node mm1 is '127.0.0.1:0', where nobody would find it"),
        ("cm1", {"witness": "127.0.0.1:0"}, r"witness of node cm1 is '127.0.0.1:0', where nobody would find it"),
        ("cm1", {"witness": "127.0.0.1:65535"}, r"'127.0.0.1:65535', and 2 ports are needed from there on"),
        ("mm1", {"further_buses": ("10.0.0.1:x",)}, r"further_buses of node mm1 has '10.0.0.1:x'; write an IPv4"),
        ("mm1", {"further_buses": ("10.0.0.1",)}, r"further_buses of node mm1 has '10.0.0.1'; write an IPv4"),
        ("mm1", {"store_bytes_max": 1 << 47}, r"store_bytes_max of node mm1 is 140737488355328; 70368744177664 is the"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(file, name, fields, fault):
    with pytest.raises(Misuse, match=fault):
        changed(file, name, **fields).check()


def test_clients_and_links_may_be_named_where_no_member_of_a_group_needs_the_address(file):
    file = changed(file, "cm2", clients="door.example:7700", hosts=("127.0.0.1",))
    changed(file, "mm1", link="mm1.example:7740").check()


def test_two_equal_ranks_are_refused_in_a_new_cluster_and_borne_in_one_that_was_founded_with_them(file):
    file = changed(file, "mm2", rank=1)
    file.check()
    with pytest.raises(Misuse, match="mm1 and mm2 of channel channel-1 have both rank 1"):
        file.check_new()


def promising(file: ClusterFile, **fields: object) -> ClusterFile:
    first, *others = file.channels
    return msgspec.structs.replace(file, channels=(msgspec.structs.replace(first, **fields), *others))


@pytest.mark.parametrize("field", ["copies", "copies_min", "checkpoint_interval"])
def test_less_than_one_copy_or_number_between_checkpoints_is_refused(file, field):
    with pytest.raises(Misuse, match=f"{field} of channel channel-1 is 0; write 1 or more"):
        promising(file, **{field: 0}).check()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"copies": 3}, "copies of channel channel-1 is 3; there are 2 message_managers"),
        ({"copies_min": 3}, "copies_min of channel channel-1 is 3, and copies 2"),
    ],
)
def test_more_copies_than_there_can_be_are_refused_in_a_new_cluster(file, fields, fault):
    file = promising(file, **fields)
    file.check()
    with pytest.raises(Misuse, match=fault):
        file.check_new()


def test_a_channel_of_one_message_manager_needs_no_word_about_its_one_copy(tmp_path):
    lay_out(tmp_path, LocalShape(backups=0)).check_new()


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ('rank = "first"', "rank of mm1 is 'first', not a whole number"),
        ("rnak = 1", "nothing of mm1 is called rnak; there are name, kind, "),
    ],
)
def test_a_field_of_the_wrong_name_or_type_is_told_by_the_name_of_its_table(file, tmp_path, wrong, fault):
    path = tmp_path / "cluster.toml"
    write_cluster_file(path, file)
    path.write_text(path.read_text().replace("rank = 1", wrong, 1))
    with pytest.raises(Misuse, match=f"cluster.toml cannot be understood: {fault}"):
        read_cluster_file(path)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xff\xfe\x00", "is no text; put back what you wrote, or a copy of it"),
        (b'name = "a', "cannot be understood: .* correct it there"),
        (b"", "cannot be understood: name is missing, .*; correct it there"),
    ],
)
def test_a_file_that_is_broken_is_one_sentence_with_the_way_out(tmp_path, data, sentence):
    path = tmp_path / "cluster.toml"
    path.write_bytes(data)
    with pytest.raises(Misuse, match=f"^the cluster file {path} {sentence}$"):
        read_cluster_file(path)


def test_a_host_that_is_no_address_is_one_sentence():
    with pytest.raises(Misuse, match="host 'localhost' is no IPv4 address"):
        find_interface("localhost")
