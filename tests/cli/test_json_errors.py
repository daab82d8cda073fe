"""What a program reads that asked for JSON and got an error: the last line of standard output says which."""

import io
import json
from typing import Annotated

import pytest
import typer

from alphorn.cli import application as cli
from alphorn.cli import talking
from alphorn.cli.talking import JsonOption
from alphorn.model.errors import Unavailable

WordArgument = Annotated[str, typer.Argument()]


def act_with_json(error: BaseException | None, *arguments: str) -> int:
    app = cli.build_app([])

    @app.command("rest")
    def rest() -> None:
        """Another command, so that each is named."""

    @app.command("act")
    def act(word: WordArgument = "", *, as_json: JsonOption = False) -> None:
        print(f'{{"word": "{word}", "as_json": {int(as_json)}}}')
        if error:
            raise error

    return cli.run(app, ["act", *arguments])


def test_who_asked_for_json_reads_the_error_in_the_last_line_of_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert act_with_json(Unavailable("queue orders is draining;\n  retry"), "--json") == 1
    captured = capsys.readouterr()
    told, error = map(json.loads, captured.out.splitlines())
    assert told == {"word": "", "as_json": 1}
    assert error == {"error": "Unavailable", "reason": "queue orders is draining; retry"}
    assert captured.err == "alphorn: queue orders is draining; retry\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--json", "--jsn"], "no such option: --jsn (possible options: --json); see alphorn act --help"),
        (["--json", "a", "b"], "got unexpected extra argument(s) (b); see alphorn act --help"),
    ],
)
def test_wrong_usage_is_an_error_in_json_too(
    capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert act_with_json(None, *arguments) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": "Misuse", "reason": reason}
    assert captured.err == f"alphorn: {reason}\n"


def test_json_that_is_no_option_but_what_is_said_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert act_with_json(Unavailable("not now"), "--", "--json") == 1
    assert capsys.readouterr().out == '{"word": "--json", "as_json": 0}\n'


def test_success_and_exit_codes_are_the_same_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert act_with_json(None, "--json") == 0
    assert act_with_json(typer.Exit(1), "--json") == 1
    assert act_with_json(KeyboardInterrupt(), "--json") == 130
    assert "error" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "destinations list",
        "destinations show queue:x",
        "destinations create queue:x",
        "destinations policy queue:x --none",
        "destinations purge queue:x",
        "destinations delete queue:x",
        "dlq list",
        "dlq redrive",
        "dlq purge queue:_DMQ",
        "move queue:x channel-2",
        "channel drain channel-2",
        "channel open channel-2",
        "send queue:x hello",
        "receive queue:x",
        "browse queue:x",
        "tail topic:x",
    ],
)
def test_every_command_that_talks_to_a_cluster_tells_its_error_in_json(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    arguments = [*command.split(), "--json", "--url", "nowhere://"]
    assert cli.run(cli.build_app(cli.load_commands(arguments)), arguments) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "Misuse"


class TornMessage:
    """A streamed message of which only the beginning comes."""

    size = 7

    def open(self) -> io.BytesIO:
        return TornBody(b"\x00film\xff!")


class TornBody(io.BytesIO):
    """Gives three bytes."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell():
            raise Unavailable("the rest did not come")
        return super().read(3)


def test_a_streamed_body_that_is_cut_off_leaves_the_next_line_to_the_reason(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    with pytest.raises(Unavailable):
        talking.write_message(TornMessage(), as_json=True, is_taken=True)  # type: ignore[arg-type]
    assert capsysbinary.readouterr().out == b'{"body_base64": "AGZp\n'
