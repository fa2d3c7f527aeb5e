"""`penstock bench offline`: real engines on the CPU, and engines that do other than asked."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest

from engine_core.client.engine_client import EngineClient
from engine_core.client.engines import Engines
from engine_core.messages import Failed
from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server import cli
from server.bench.measurement import BenchError, next_beat
from server.bench.offline import OfflineRunner, offline_runner
from server.bench.workloads import (
    DECISIONS,
    DEGREES,
    GENERATION,
    PREFILL,
    SHARING,
    TENSORRT,
)
from server.daemon.run import RunningEngine, StartError, running_engine
from tests.server.bench.conftest import bench, cases_of, write_shape
from tests.server.checkpoint_folders import BERT, LLAMA, write_json
from tests.server.conftest import DeploymentBuilder
from tests.server.fake_engine import STAGE_TIMES, FakeEngine

CASES = {
    case.name: case for case in (*GENERATION, *PREFILL, *DEGREES, *SHARING, *TENSORRT, *DECISIONS)
}
STAGE_SHARES = ("busy", "waiting", "transfer", "idle")
CLASSIFIER = BERT | {"architectures": ["BertForSequenceClassification"]}


def test_generation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = LLAMA | {"max_position_embeddings": 2400}
    arguments = ["--case", "dec", "long32k", "--scale", "0.0025"]
    dec, long32k = cases_of(tmp_path, config, *arguments, code=1)
    assert dec["engine"]["devices"] == ["cpu"]
    assert dec["engine"]["attention_backend"] == "auto"
    run = dec["figures"]
    assert (run["prompt_tokens"], run["output_tokens"]) == (128, 512)
    # A step for each token, and those that were submitted ahead of the last.
    assert 512 <= run["steps"] <= 514
    assert run["cached_tokens"] == 0
    assert "bubble_share" not in run
    assert run["output_tokens_per_s"] == pytest.approx(512 / run["seconds"])
    # To the first token, then each further one: that is all the time there was.
    whole = run["ttft_mean_ms"] + 511 * run["tpot_mean_ms"]
    assert whole == pytest.approx(run["seconds"] * 1e3, rel=0.1)
    assert "prompt has 32000 and 1 to generate" in long32k["error"]
    said = capsys.readouterr()
    assert "dec: not judged: a quick look: 1 instead of 256, on shape tiny" in said.out
    assert said.err.endswith("penstock: error: not measured: long32k\n")


def test_several_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--case", "one", "dec", "--scale", "0.0025", "--repeat-starts", "2"]
    config = LLAMA | {"max_position_embeddings": 800}
    one, dec = cases_of(tmp_path, config, *arguments)
    assert one["case"] == "one"
    for case in (one, dec):
        rates = [start["output_tokens_per_s"] for start in case["starts"]]
        assert [run["output_tokens_per_s"] for run in case["runs"]] == rates
        spread = (max(rates) / min(rates) - 1) * 100
        assert case["rows"][0]["spread_percent"] == pytest.approx(spread)
    seconds = [[start["start_seconds"] for start in case["starts"]] for case in (one, dec)]
    assert seconds[0] == seconds[1]
    # Each start is an engine of its own.
    assert len(set(seconds[0])) == 2
    assert min(seconds[0]) > 0.5
    said = capsys.readouterr().out
    assert said.count("start_seconds") == 4
    assert re.search(r"^dec .* \S+, \S+ \(\d+\.\d%\)$", said, re.MULTILINE)


def test_a_later_start_that_fails(tmp_path: Path, monkeypatch, capsys) -> None:
    starts = Mock(side_effect=[started(3.0), started(4.0), StartError("the device is full")])
    monkeypatch.setattr("server.bench.command.offline_runner", starts)
    arguments = ["--case", "one", "--repeat-starts", "5"]
    (one,) = cases_of(tmp_path, LLAMA, *arguments, code=1)
    assert starts.call_count == 3
    assert [start["output_tokens_per_s"] for start in one["starts"]] == [3.0, 4.0]
    assert one["error"] == "the device is full"
    said = capsys.readouterr()
    assert "3, 4 (33.3%)\n" in said.out
    assert "one: FAILED: the device is full\n" in said.out
    assert said.err.endswith("penstock: error: not measured: one\n")


@asynccontextmanager
async def started(rate: float) -> AsyncIterator[Mock]:
    """What runs cases on an engine that is so fast."""
    run = {"output_tokens_per_s": rate}
    yield Mock(model=None, warm_up=AsyncMock(), measure=AsyncMock(return_value=run))


@pytest.mark.long
def test_cases_of_a_pipeline_on_one_engine(tmp_path: Path, monkeypatch, capsys) -> None:
    start = Mock(wraps=offline_runner)
    monkeypatch.setattr("server.bench.command.offline_runner", start)
    config = LLAMA | {"max_position_embeddings": 16_400}
    arguments = ["--case", "one", "skew", "--scale", "0.0015"]
    pipeline = ["--pipeline-stages", "2", "--stage-layers", "1,1", "--steps-ahead", "0"]
    one, skew = cases_of(tmp_path, config, *arguments, *pipeline)
    assert start.call_count == 1
    given = {"devices": ["cpu", "cpu"], "stage_layers": [1, 1], "steps_ahead": 0}
    assert given.items() <= skew["engine"].items()
    assert skew["figures"]["prompt_tokens"] == 16_000 + 256
    for case in (one, skew):
        figures = case["figures"]
        for stage in (0, 1):
            shares = [figures[f"stage_{stage}_{name}_share"] for name in STAGE_SHARES]
            assert min(shares) >= 0
            assert sum(shares) == pytest.approx(1)
            # All but what comes before a stage's first step and after its last.
            assert 0.5 < figures[f"stage_{stage}_seconds"] / figures["seconds"] <= 1
        busy = min(figures["stage_0_busy_share"], figures["stage_1_busy_share"])
        assert figures["bubble_share"] == pytest.approx(1 - busy)
    said = capsys.readouterr().out
    assert "skew bubble (1,1)" in said
    assert "\nskew: stage 1: busy " in said


@pytest.mark.long
def test_all_sequences_of_the_largest_case_are_let_in_at_once(tmp_path: Path, capsys) -> None:
    assert bench("--case", "emb32", "--shape", write_shape(tmp_path / "tiny", BERT)) == 0
    assert "emb32 (count=16384 own=32): sequences 16,384," in capsys.readouterr().out


@pytest.mark.parametrize(
    ("case", "config"), [("rer32", CLASSIFIER), pytest.param("emb32", BERT, marks=pytest.mark.long)]
)
def test_prefill(case, config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--case", case, "--scale", "0.07", "--pipeline-stages", "2"]
    (report,) = cases_of(tmp_path, config, *arguments)
    (run,) = report["runs"]
    assert "bubble_share" in run
    assert (run["sequences"], run["prompt_tokens"]) == (1147, 1147 * 32)
    assert run["sequences_per_s"] == pytest.approx(1147 / run["seconds"])
    assert case in capsys.readouterr().out


def test_a_model_that_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = write_shape(tmp_path / "odd", LLAMA | {"architectures": ["BloomForCausalLM"]})
    assert bench("--case", "one", "dec", "--shape", shape) == 1
    said = capsys.readouterr()
    for case in ("one", "dec"):
        (line,) = (line for line in said.out.splitlines() if line.startswith(f"{case}: FAILED: "))
        assert "config.json: architecture 'BloomForCausalLM' is not supported" in line
    assert "not measured: one, dec" in said.err


def test_a_vocabulary_that_is_too_small_is_refused_before_the_start(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    start = Mock(wraps=running_engine)
    monkeypatch.setattr("server.bench.offline.running_engine", start)
    (tmp_path / "tiny").mkdir()
    write_json(tmp_path / "tiny" / "config.json", LLAMA | {"vocab_size": 20_000})
    assert bench("--case", "one", "dec", "--shape", str(tmp_path / "tiny")) == 1
    reason = "tiny: its vocabulary has 20,000 entries, and prompts have token ids up to 20,000"
    said = capsys.readouterr().out
    assert [f"{case}: FAILED: {reason}" in said for case in ("one", "dec")] == [True, True]
    assert not start.called


def test_a_file_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path, capsys) -> None:
    assert bench("--case", "one", "--json", str(tmp_path / "none" / "out.json")) == 1
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "nothing"], "invalid choice: 'nothing'"),
        (["--case", "one", "--scale", "0"], "'0' is not a fraction"),
        (["--case", "one", "--scale", "1.5"], "'1.5' is not a fraction"),
        (["--case", "one", "--repeat-starts", "0"], "'0' is not a whole number above 0"),
        (["--case", "one", "--repeat", "0"], "'0' is not a whole number above 0"),
        ([], "the following arguments are required: --case"),
    ],
)
def test_bad_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        bench(*arguments)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["bench", "offline", "--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in CASES)
    assert "all-generation" in text
    assert "--attention-backend NAME" in text


async def test_exactly_as_many_tokens(fake: tuple[FakeEngine, OfflineRunner]) -> None:
    engine, runner = fake
    figures = await runner.measure(CASES["rand"].scaled(0.05), 0)
    assert (figures["requests"], figures["output_tokens"]) == (103, 103 * 256)
    assert [len(job.ids) for job in engine.received] == [64, 39]
    assert {len(prompt) for job in engine.received for prompt in job.ids} == {512 * 4}


async def test_a_row_that_is_too_short(fake: tuple[FakeEngine, OfflineRunner]) -> None:
    engine, runner = fake
    engine.script.tokens = [5, -1]
    with pytest.raises(BenchError, match=r"a row ended \(length\) after 128 of 256 tokens"):
        await runner.measure(CASES["one"], 0)


async def test_an_engine_that_refuses_or_fails(fake: tuple[FakeEngine, OfflineRunner]) -> None:
    engine, runner = fake
    engine.script.fail_after = 3
    with pytest.raises(RefusalError, match="no finite result"):
        await runner.measure(CASES["one"], 0)
    engine.script.refusal = Failed(0, "overloaded", "the engine is full")
    with pytest.raises(RefusalError, match="the engine is full"):
        await runner.measure(msgspec.structs.replace(CASES["dec"], count=130), 0)


async def test_an_engine_that_vanishes(fake: tuple[FakeEngine, OfflineRunner]) -> None:
    engine, runner = fake
    engine.kill()
    with pytest.raises((BenchError, RefusalError)):
        await runner.measure(CASES["one"], 0)


async def test_copies_divide_the_jobs_and_are_counted_together(
    builder: DeploymentBuilder, tokenizer: Tokenizer
) -> None:
    model = builder.model("fake", "generate")
    endpoint = model.engine.client_endpoint
    with FakeEngine(f"{endpoint}0", tokenizer) as one, FakeEngine(f"{endpoint}1", tokenizer) as two:
        engines = Engines(EngineClient(f"{endpoint}{copy}") for copy in (0, 1))
        engines.start()
        try:
            await engines.wait_ready()
            runner = OfflineRunner(RunningEngine(engines, model), 1.5, prefix_caching=True)
            case = msgspec.structs.replace(CASES["dec"], count=6 * 64, own=8, outputs=2)
            figures = await runner.measure(case, 0)
            beat = await next_beat(engines)
        finally:
            engines.close()
    assert [len(engine.received) for engine in (one, two)] == [3, 3]
    assert figures["output_tokens"] == 6 * 64 * 2
    assert beat.usage.kv_blocks_total == 2 * 16
    assert [stage.busy_s for stage in beat.stages] == [2 * stage.busy_s for stage in STAGE_TIMES]
