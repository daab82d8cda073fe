"""The Spark part of a demonstration is a process of its own that comes back when it dies and goes when it must."""

import asyncio
import os
from pathlib import Path

import pytest

from alphorn.cli import pipeline

WAIT_S = 60.0


def test_a_pipeline_that_dies_is_started_again_and_ends_with_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MODULE", "tests.cli.fake_pipeline")
    monkeypatch.setattr(pipeline, "missing_for_spark", lambda: "")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    said: list[str] = []

    async def run() -> None:
        twice = asyncio.Event()

        def say(sentence: str) -> None:
            said.append(sentence)
            if said.count("spark: reads alphorn://there") == 2:
                twice.set()

        async with asyncio.timeout(WAIT_S):
            task = asyncio.ensure_future(pipeline.run_pipeline("alphorn://there", tmp_path / "spark", say))
            await twice.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert said[:2] == ["spark: reads alphorn://there", "spark: the pipeline ended with code 3; it is started again"]
    assert (tmp_path / "spark" / "spark.log").exists()


def test_what_spark_lacks_is_said_and_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "missing_for_spark", lambda: "there is no java; install one")
    said: list[str] = []
    asyncio.run(pipeline.run_pipeline("alphorn://there", tmp_path / "spark", said.append))
    assert said == ["spark: the pipeline does not run, because there is no java; install one"]
    assert not (tmp_path / "spark").exists()


def test_a_machine_without_java_or_pyspark_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(pipeline.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(pipeline.shutil, "which", lambda name: None)
    assert "no java" in pipeline.missing_for_spark()
    monkeypatch.setattr(pipeline.shutil, "which", lambda name: os.devnull)
    assert pipeline.missing_for_spark() == ""
    monkeypatch.setattr(pipeline.importlib.util, "find_spec", lambda name: None)
    assert "pyspark is not installed" in pipeline.missing_for_spark()


def test_a_sum_by_region_is_told_as_a_sentence_and_anything_else_as_it_is() -> None:
    body = '{"until":"06:32:20","region":"us","orders":21,"amount":5357}'
    assert pipeline.sentence_of(body) == "until 06:32:20 us ordered 21 times, for 5,357 in all"
    assert pipeline.sentence_of(b"odd") == "topic:orders.by_region got b'odd'"
