import pytest

from alphorn.bus.config import Role, Timing
from alphorn.io.member_file import MemberFile, read_member_file, write_member_file
from alphorn.model.errors import Misuse

SAMPLE = """
name = "primary"
directory = "store"
cluster_key = "/etc/alphorn/key"

[timing]
suspect_s = 0.5

[group]
id = 7
copies = 1
[[group.members]]
number = 1
name = "primary"
address = "10.0.0.1:21100"
roles = ["sequencer", "data", "commit", "checkpoint"]
rank = 3
tag = "here"
"""


def write(path, text: str):
    file = path / "member.toml"
    file.write_text(text)
    return file


def test_a_file_for_people_says_who_this_process_is(tmp_path):
    read = read_member_file(write(tmp_path, SAMPLE))
    me = read.me()
    assert (me.number, me.name, me.address, me.rank, me.tag) == (1, "primary", "10.0.0.1:21100", 3, "here")
    assert me.roles == Role.SEQUENCER | Role.DATA | Role.COMMIT | Role.CHECKPOINT
    assert read.group.config().members == (me,)
    assert read.timing == Timing(suspect_s=0.5)


def test_paths_are_relative_to_the_file(tmp_path):
    read = read_member_file(write(tmp_path, SAMPLE))
    assert read.directory == str(tmp_path / "store")
    assert read.cluster_key == "/etc/alphorn/key"
    assert read.capture == ""


def test_a_name_that_is_not_configured_is_a_client(tmp_path):
    read = read_member_file(write(tmp_path, SAMPLE.replace('name = "primary"', 'name = "visitor"', 1)))
    assert read.me().number == 0
    assert read.me().roles == Role.NONE


def test_a_file_for_programs_reads_back_as_it_was_written(tmp_path):
    read = read_member_file(write(tmp_path, SAMPLE))
    write_member_file(tmp_path / "member.json", read)
    assert read_member_file(tmp_path / "member.json") == read


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = ", "is not right"),
        (SAMPLE.replace("copies = 1", "copys = 1"), "nothing of group is called copys; there are id, members, copies"),
        (SAMPLE.replace('"commit"', '"judge"'), "number 3 of roles of primary is .judge., not .sequencer. or .data."),
        (SAMPLE.replace('directory = "store"', ""), "gives primary no directory"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_reason(tmp_path, text, reason):
    with pytest.raises(Misuse, match=reason):
        read_member_file(write(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(Misuse, match="cannot be read"):
        read_member_file(tmp_path / "none.toml")


def test_an_agreement_that_cannot_work_is_refused(tmp_path):
    read: MemberFile = read_member_file(write(tmp_path, SAMPLE.replace("copies = 1", "copies = 2")))
    with pytest.raises(Misuse, match="copies 2 needs as many data servers"):
        read.group.config()
