"""`penstock bench serve` against real daemons: one that runs, and those that it starts."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server import cli
from server.bench.http_runner import HTTPRunner
from server.bench.workloads import HTTPCase
from server.daemon.run import running_daemons
from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running
from tests.server.bench.conftest import ON_CPU, write_shape
from tests.server.checkpoint_folders import BERT, LLAMA


@pytest.fixture(scope="module")
def demo() -> Iterator[Daemon]:
    with running("--threads", "1") as daemon:
        yield daemon


def measured(folder: Path, *arguments: str) -> dict[str, Any]:
    """The report on the only case of these arguments."""
    kept = folder / "out.json"
    code = cli.main(["bench", "serve", "--json", str(kept), *arguments])
    (case,) = json.loads(kept.read_bytes())["cases"]
    assert code == 0, case["error"]
    return case


GENERATION = ("--tokenizer", str(demo_models()[GENERATOR_NAME] / "tokenizer.json"))


@pytest.mark.parametrize("flags", [(), GENERATION])
def test_generation_of_a_daemon_that_runs(
    demo: Daemon, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    arguments = ("--url", demo.url, "--case", "http-gen-32x32", "--scale", "0.002", "--repeat", "2")
    report = measured(tmp_path, *arguments, *flags)
    assert f"on model {GENERATOR_NAME} instead of llama8b" in report["notes"]
    for run in report["runs"]:
        assert (run["requests"], run["errors"]) == (6, 0)
        # The demo model's prompts begin with one special token.
        assert (run["prompt_tokens"], run["output_tokens"]) == (6 * 33, 6 * 32)
        assert 0 < run["ttft_p50_ms"] <= run["latency_p50_ms"]


@pytest.mark.parametrize(
    ("case", "sequences", "tokens", "flags"),
    [
        ("1x32", 10, 32, ()),
        pytest.param("32x128", 32, 128, ("--model", EMBEDDER_NAME), marks=pytest.mark.long),
    ],
)
def test_embeddings_of_a_daemon_that_runs(
    demo: Daemon, tmp_path: Path, case: str, sequences: int, tokens: int, flags: tuple[str, ...]
) -> None:
    arguments = ("--url", demo.url, *flags, "--case", f"http-emb-{case}")
    figures = measured(tmp_path, *arguments, "--scale", "0.0005")["figures"]
    # A text begins with [CLS] and ends with [SEP].
    expected = (sequences, sequences * (tokens + 2))
    assert (figures["sequences"], figures["prompt_tokens"]) == expected


@pytest.mark.parametrize(
    ("case", "config", "requests"),
    [
        pytest.param("http-gen-32x32", LLAMA, 9, marks=pytest.mark.long),
        ("http-emb-32x128", BERT, 6),
    ],
)
def test_a_daemon_of_its_own(tmp_path: Path, monkeypatch, case, config, requests) -> None:
    found: list[str] = []
    warm_up = HTTPRunner.warm_up

    async def warm_up_where_others_look(runner: HTTPRunner, case: HTTPCase) -> None:
        own = (daemon for daemon in running_daemons() if daemon.pid == os.getpid())
        found.extend(model.name for daemon in own for model in daemon.models)
        await warm_up(runner, case)

    monkeypatch.setattr(HTTPRunner, "warm_up", warm_up_where_others_look)
    shape = write_shape(tmp_path / "tiny", config | {"max_position_embeddings": 256})
    arguments = ["--start", "--case", case, "--scale", "0.003", "--shape", shape, *ON_CPU]
    arguments += ["--api-workers", "2", "--clients", "2", "--pipeline-stages", "2"]
    report = measured(tmp_path, *arguments)
    assert found == ["tiny"]
    assert (report["figures"]["requests"], report["figures"]["clients"]) == (requests, 2)
    assert report["engine"]["devices"] == ["cpu", "cpu"]
    assert 0 < report["figures"]["bubble_share"] < 1
    shape = f"on shape tiny instead of {report['shape']}"
    assert report["notes"][1:] == [shape, "on a CPU", "in float32"]


def test_one_of_url_and_start(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in ([], ["--start", "--url", "http://127.0.0.1:1"], ["--start", "--model", "m"]):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(["bench", "serve", "--case", "http-gen-16", *flags])
        assert exit_info.value.code == 2
    assert "--model is only for --url" in capsys.readouterr().err
