"""`alphorn spark`: what is wrong is said before Spark starts, or as the one sentence that a task raised."""

import datetime
import logging
import signal
import subprocess

import pytest

from alphorn.cli import spark as command
from alphorn.model.errors import Corruption, InvalidDestination, Misuse, Unavailable
from tests.cli.commands import run

JOBS = ("archive", "replay", "consolidate", "audit", "logs", "dead-letters", "traffic")


def test_the_help_names_every_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("spark", "--help") == 0
    said = capsys.readouterr().out
    assert [job for job in JOBS if job not in said] == []


@pytest.mark.parametrize("job", JOBS)
def test_every_job_runs_on_this_machine_unless_told_otherwise(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("spark", job, "--help") == 0
    said = capsys.readouterr().out
    assert "--master" in said
    assert "local[*]" in said


def test_a_machine_without_pyspark_is_told_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert run("spark", "logs") == 1
    assert "pip install 'alphorn[spark]'" in capsys.readouterr().err


def test_settings_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    assert run("spark", "logs", "--conf", "shuffle=2") == 1
    assert "'shuffle=2' is no setting of Spark; write spark.some.key=value" in capsys.readouterr().err


@pytest.mark.parametrize("master", ["nonsense", "", "local[", "local[x]", "spark://", "mesos://host"])
def test_a_master_that_spark_does_not_know_is_one_sentence(capsys: pytest.CaptureFixture[str], master: str) -> None:
    pytest.importorskip("pyspark")
    assert run("spark", "logs", "--master", master) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"alphorn: {master!r} is no master of Spark; write local[*]")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[4]",
        "local[*,3]",
        "local-cluster[2,1,1024]",
        "yarn",
        "spark://a:1,b:1",
        "k8s://https://a",
    ],
)
def test_masters_that_spark_knows_are_taken(master: str) -> None:
    pytest.importorskip("alphorn.spark.jobs.starting").check_master(master)


def test_a_cluster_that_is_away_is_told_before_spark_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = pytest.importorskip("alphorn.spark.jobs.starting")
    monkeypatch.setattr(starting, "start_spark", lambda *arguments: pytest.fail("Spark was started"))
    assert run("spark", "logs", "--url", "alphorn://127.0.0.1:1") == 1
    assert "no Client Manager answered" in capsys.readouterr().err


def test_a_job_that_never_ends_cannot_do_something_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("spark", "archive", "--archive", "a", "--destination", "topic:t", "--every", "5", "--compact") == 1
    assert "leave one of them out" in capsys.readouterr().err


def test_times_without_a_zone_are_utc() -> None:
    assert command._utc(datetime.datetime(2026, 1, 31, 12)) == datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    assert command._utc(None) is None


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (
            "An error occurred:\nTraceback (most recent call last):\n  File ...\n"
            "alphorn.model.errors.InvalidDestination: there is no topic:x; create it\n",
            InvalidDestination,
            "there is no topic:x; create it",
        ),
        (
            "alphorn.model.errors.Misuse: first\nDuring handling ...\nalphorn.model.errors.Corruption: last\n\tat java",
            Corruption,
            "last",
        ),
        (
            "alphorn.client.log_reader.LostMessages: channel main keeps no more\n",
            Unavailable,
            "channel main keeps no more",
        ),
        ("\n[STREAM_FAILED] it ended\nmore\n", Unavailable, "Spark could not do it: [STREAM_FAILED] it ended"),
        ("", Unavailable, "Spark could not do it: it gave no reason"),
    ],
)
def test_an_error_within_spark_comes_out_as_the_sentence_that_was_raised(text: str, kind: type, sentence: str) -> None:
    failures = pytest.importorskip("alphorn.spark.jobs.failures")
    error = failures.error_in(text)
    assert isinstance(error, kind)
    assert str(error) == sentence


def test_no_java_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = pytest.importorskip("alphorn.spark.jobs.starting")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="install openjdk-17-jre-headless"):
        starting.start_spark("tests", "local[2]")
    with pytest.raises(Misuse):
        starting.parse_setting("spark.x")


def test_an_interrupt_while_spark_starts_leaves_no_java_and_no_traceback_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starting = pytest.importorskip("alphorn.spark.jobs.starting")
    started: list[subprocess.Popen[bytes]] = []

    def wait_for_ever() -> None:
        started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))

    def interrupted(builder: object) -> None:
        wait_for_ever()
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            logging.exception("while sending command")  # as Spark's bridge to Java does
            raise

    monkeypatch.setattr(starting.SparkSession.Builder, "getOrCreate", interrupted)
    wait_for_ever()
    with started[0] as other:
        with pytest.raises(KeyboardInterrupt):
            starting.start_spark("tests", "local[2]")
        with started[1] as java:
            assert java.wait() == -signal.SIGKILL
        assert other.poll() is None, "what was there before is not Spark's"
    assert caplog.records == []
