"""Decisions without HTTP: how they are submitted, and what is measured of them."""

from pathlib import Path

import pytest

from engine_core.messages import ReadJob
from server.bench.measurement import BenchError
from server.bench.offline import OfflineRunner
from server.bench.workloads import DECISIONS
from tests.server.bench.conftest import cases_of
from tests.server.checkpoint_folders import LLAMA
from tests.server.fake_engine import FakeEngine

CASES = {case.name: case for case in DECISIONS}
LONG_LLAMA = LLAMA | {"max_position_embeddings": 8400}


@pytest.mark.parametrize("salted", [False, True])
async def test_an_input_is_sent_once_with_its_questions(
    fake: tuple[FakeEngine, OfflineRunner], *, salted: bool
) -> None:
    engine, runner = fake
    runner = OfflineRunner(runner.engine, 1.5, prefix_caching=not salted)
    # Its tokenizer does not know these words.
    with pytest.raises(BenchError, match=r"texts have \[.*\] tokens in place of \[2000, 40"):
        await runner.measure(CASES["decisions-many"].scaled(0.03), 0)
    jobs = [job for job in engine.received if isinstance(job, ReadJob)]
    rows = 1 if salted else 40
    assert {len(job.prompts) for job in jobs} == {rows}
    assert {tuple(map(len, map(str.split, job.pieces))) for job in jobs} == {(2000, *[40] * rows)}
    assert not any(job.batch for job in jobs)
    assert {len(ids) // 4 for job in jobs for ids in job.tokens} == {4}
    salts = {job.cache_salt for job in jobs}
    assert (salts == {""}) is not salted
    assert len(salts) == (len(jobs) if salted else 1)


def test_inputs_are_computed_once(tmp_path: Path) -> None:
    arguments = ["--case", "decisions", "decisions-many", "--scale", "0.03"]
    one, many = cases_of(tmp_path, LONG_LLAMA, *arguments)
    for case, questions, tokens in ((one, 100, 8192 + 100 * 60), (many, 80, 2 * 3600)):
        figures = case["figures"]
        assert figures["questions"] == questions
        assert figures["questions_per_s"] == pytest.approx(questions / figures["seconds"])
        assert figures["computed_tokens"] == tokens
        assert figures["computed_ratio"] == 1
        assert figures["saved_share"] == 1 - tokens / figures["prompt_tokens"]


@pytest.mark.long
def test_inputs_that_are_not_shared(tmp_path: Path) -> None:
    arguments = ["--case", "decisions-many", "--scale", "0.01", "--no-prefix-caching"]
    (many,) = cases_of(tmp_path, LONG_LLAMA, *arguments)
    assert many["figures"]["computed_tokens"] == 40 * 2040
    assert many["figures"]["computed_ratio"] > 20
