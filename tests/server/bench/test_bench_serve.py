"""`penstock bench serve` against real daemons: one that runs, and those that it starts."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from server import cli
from server.bench.http_runner import HTTPRunner
from server.bench.workloads import HTTPCase
from server.daemon.run import running_daemons
from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running
from tests.server.checkpoint_folders import BERT, LLAMA, write_json


@pytest.fixture(scope="module")
def demo() -> Iterator[Daemon]:
    with running("--threads", "1") as daemon:
        yield daemon


def test_generation_of_a_daemon_that_runs(
    demo: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "out.json"
    tokenizer = demo_models()[GENERATOR_NAME] / "tokenizer.json"
    code = cli.main(
        [
            *("bench", "serve", "--url", demo.url, "--scale", "0.005", "--repeat", "2"),
            *("--case", "http-gen-32x32", "http-gen-16", "--tokenizer", str(tokenizer)),
            *("--json", str(kept)),
        ]
    )
    assert code == 0, capsys.readouterr()
    many, paced = json.loads(kept.read_bytes())["cases"]
    for run in many["runs"]:
        assert (run["requests"], run["errors"]) == (15, 0)
        # The demo model's prompts begin with one special token.
        assert (run["prompt_tokens"], run["output_tokens"]) == (15 * 33, 15 * 32)
        assert 0 < run["ttft_p50_ms"] <= run["latency_p50_ms"]
    for run in paced["runs"]:
        assert (run["requests"], run["output_tokens"]) == (3, 3 * 128)
        # Arrivals take as long as so many do at 16 a second.
        assert run["seconds"] >= 3 / 16
    assert [row["figure"] for row in paced["rows"]] == [
        "ttft_p50_ms",
        "ttft_p99_ms",
        "tpot_mean_ms",
    ]
    assert "http-gen-16 tpot mean" in capsys.readouterr().out


def test_embeddings_of_a_daemon_that_runs(
    demo: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "out.json"
    code = cli.main(
        [
            *("bench", "serve", "--url", demo.url, "--model", EMBEDDER_NAME, "--scale", "0.0005"),
            *("--case", "http-emb-1x32", "http-emb-32x128", "--json", str(kept)),
        ]
    )
    assert code == 0, capsys.readouterr()
    one, many = json.loads(kept.read_bytes())["cases"]
    # A text begins with [CLS] and ends with [SEP].
    assert (one["figures"]["requests"], one["figures"]["prompt_tokens"]) == (10, 10 * 34)
    assert (many["figures"]["sequences"], many["figures"]["prompt_tokens"]) == (32, 32 * 130)


def test_a_model_of_another_kind_is_a_failure(
    demo: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", GENERATOR_NAME, "--scale", "0.0005", "--case", "http-emb-1x32"]
    assert cli.main(["bench", "serve", "--url", demo.url, *arguments]) == 1
    said = capsys.readouterr()
    assert "http-emb-1x32: FAILED: 10 of 10 requests failed: 10 x status 400" in said.out
    assert "penstock: error: not measured: http-emb-1x32" in said.err


@pytest.mark.parametrize(
    ("case", "config", "requests"),
    [
        pytest.param("http-gen-32x32", LLAMA, 30, marks=pytest.mark.long),
        ("http-emb-32x128", BERT, 20),
    ],
)
def test_a_daemon_of_its_own(
    case: str,
    config: dict[str, object],
    requests: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str] = []
    warm_up = HTTPRunner.warm_up

    async def warm_up_where_others_look(runner: HTTPRunner, case: HTTPCase) -> None:
        own = (daemon for daemon in running_daemons() if daemon.pid == os.getpid())
        found.extend(model.name for daemon in own for model in daemon.models)
        await warm_up(runner, case)

    monkeypatch.setattr(HTTPRunner, "warm_up", warm_up_where_others_look)
    shape, kept = tmp_path / "tiny", tmp_path / "out.json"
    shape.mkdir()
    write_json(shape / "config.json", config | {"max_position_embeddings": 256})
    code = cli.main(
        [
            *("bench", "serve", "--start", "--case", case, "--scale", "0.01"),
            *("--shape", str(shape), "--device", "cpu", "--threads", "1", "--api-workers", "2"),
            *("--clients", "2", "--pipeline-stages", "2"),
            *("--json", str(kept)),
        ]
    )
    (report,) = json.loads(kept.read_bytes())["cases"]
    assert code == 0, report["error"]
    assert found == ["tiny"]
    assert (report["figures"]["requests"], report["figures"]["clients"]) == (requests, 2)
    assert report["engine"]["devices"] == ["cpu", "cpu"]
    assert 0 < report["figures"]["bubble_share"] < 1
    assert report["notes"][1:] == [
        "on shape tiny instead of " + report["shape"],
        "on a CPU",
        "in float32",
    ]


def test_one_of_url_and_start(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in ([], ["--start", "--url", "http://127.0.0.1:1"], ["--start", "--model", "m"]):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(["bench", "serve", "--case", "http-gen-16", *flags])
        assert exit_info.value.code == 2
    assert "--model is only for --url" in capsys.readouterr().err
