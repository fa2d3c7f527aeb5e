"""Prompts that share prefixes: how they are submitted, and what is measured of them."""

from pathlib import Path

import pytest

from engine_core.messages import GenerateJob
from server.bench.offline import OfflineRunner, sampling_params
from server.bench.workloads import (
    DEGREES,
    GENERATION,
    SHARING,
    GenerationCase,
    offline_prompts,
    output_lengths,
)
from tests.server.bench.conftest import cases_of
from tests.server.checkpoint_folders import LLAMA
from tests.server.fake_engine import FakeEngine

CASES = {case.name: case for case in (*GENERATION, *DEGREES, *SHARING)}


async def test_prompts_that_share_prefixes_are_sorted_and_of_the_batch_band(
    fake: tuple[FakeEngine, OfflineRunner],
) -> None:
    engine, runner = fake
    figures = await runner.measure(CASES["b16"].scaled(0.01), 0)
    assert figures["requests"] == 4 * 16
    (job,) = engine.received
    assert isinstance(job, GenerateJob)
    assert (len(job.ids), job.batch) == (64, True)
    assert (job.params.max_tokens, job.params.ignore_eos) == (100, True)
    assert job.ids == sorted(offline_prompts(CASES["b16"].scaled(0.01)))
    prefixes = [prompt[: 2000 * 4] for prompt in job.ids]
    assert prefixes == [prefix for prefix in dict.fromkeys(prefixes) for _ in range(16)]


async def test_without_prefix_caching_none_share(fake: tuple[FakeEngine, OfflineRunner]) -> None:
    engine, runner = fake
    alone = OfflineRunner(runner.engine, 1.5, prefix_caching=False)
    await alone.measure(CASES["b16"].scaled(0.01), 0)
    salts = {job.cache_salt for job in engine.received}
    assert len(salts) == len(engine.received) == 64
    assert "" not in salts
    # Prompts of other cases share nothing: they are submitted as always.
    await alone.measure(CASES["rand"].scaled(0.05), 0)
    assert [(job.cache_salt, job.batch) for job in engine.received[64:]] == [("", False)] * 2


def test_rows_that_end_by_a_stop_token() -> None:
    case = CASES["batchllm"]
    assert isinstance(case, GenerationCase)
    lengths = output_lengths(case, 6400)
    assert (min(lengths), max(lengths)) == (1, 400)
    assert sum(lengths) / 6400 == pytest.approx(100, rel=0.02)
    assert output_lengths(CASES["b16"], 3) == [100] * 3  # pyright: ignore[reportArgumentType]
    for length in set(lengths):
        params = sampling_params(case, length)
        assert (params.min_tokens, params.max_tokens) == (length - 1, 400)
        assert params.stop_token_ids == params.logit_bias.keys()
        assert (params.sampling.temperature, params.sampling.top_p) == (0.01, 0.1)


def test_degrees_differ_in_their_groups_only() -> None:
    assert [case.members for case in DEGREES] == [1, 2, 4, 8, 16, 32, 64, 128, 400]
    assert {case.count * case.members for case in DEGREES} == {6400}
    shapes = {(case.prefix, case.own, case.outputs, case.shuffled) for case in DEGREES}
    assert shapes == {(2000, 200, 100, True)}
    degree_16 = CASES["degree-16"].scaled(0.005)
    assert offline_prompts(degree_16) == offline_prompts(CASES["b16"].scaled(0.005))


def test_nested_prefixes() -> None:
    prompts = offline_prompts(CASES["nested"].scaled(0.1))
    assert len(prompts) == 8 * 8
    assert len({prompt[: 1000 * 4] for prompt in prompts}) == 1
    documents = [prompt[1000 * 4 : 2000 * 4] for prompt in prompts]
    assert {documents.count(document) for document in documents} == {8}
    own = {len(prompt) // 4 - 2000 for prompt in prompts}
    assert len(own) > 20
    assert min(own) >= 64
    assert max(own) <= 200


LONG_LLAMA = LLAMA | {"max_position_embeddings": 2600}


def test_prefixes_that_are_shared(tmp_path: Path) -> None:
    arguments = ["--case", "degree-4", "--scale", "0.0005", "--repeat", "2"]
    # A whole block of the cache is smaller than what is left of a prefix.
    (four,) = cases_of(tmp_path, LONG_LLAMA, *arguments, "--block-size", "128")
    # The second run has found nothing of the first.
    for run in four["runs"]:
        assert run["prompt_tokens"] == 4 * 2200
        assert run["saved_share"] == pytest.approx(3 * 2000 / (4 * 2200))


@pytest.mark.long
def test_prefixes_that_are_not_shared_and_outputs_that_end_by_themselves(tmp_path: Path) -> None:
    arguments = ["--case", "degree-1", "degree-4", "batchllm", "--scale", "0.0005"]
    cases = cases_of(tmp_path, LONG_LLAMA, *arguments, "--no-prefix-caching")
    alone, four, batchllm = (each["figures"] for each in cases)
    assert (alone["requests"], alone["saved_share"]) == (4, 0)
    assert (four["requests"], four["saved_share"]) == (4, 0)
    lengths = output_lengths(CASES["batchllm"], 16)  # pyright: ignore[reportArgumentType]
    assert (batchllm["requests"], batchllm["output_tokens"]) == (16, sum(lengths))


@pytest.mark.long
def test_a_long_prefix_and_nested_ones(tmp_path: Path) -> None:
    config = LLAMA | {"max_position_embeddings": 16_400}
    arguments = ["--case", "prefix16k", "nested", "--scale", "0.1"]
    long, nested = cases_of(tmp_path, config, *arguments)
    assert long["figures"]["saved_share"] == pytest.approx(15 * 16_000 / (16 * 16_200))
    # Whole blocks of the prefix, and of each member what comes after them.
    figures, block = long["figures"], long["engine"]["block_size"]
    shared = 16_000 // block
    assert figures["kv_blocks_peak"] == shared + 16 * (-(-16_300 // block) - shared)
    assert nested["figures"]["cached_tokens"] >= 8 * 7 * 2000


@pytest.mark.long
@pytest.mark.parametrize(("flags", "saved"), [((), 200), (("--no-prefix-caching",), 0)])
def test_documents_of_one_query(flags: tuple[str, ...], saved: int, tmp_path: Path) -> None:
    reranker = LLAMA | {
        "architectures": ["LlamaForSequenceClassification"],
        "max_position_embeddings": 512,
    }
    arguments = ["--case", "rerank100", "--scale", "0.02", "--block-size", "16", *flags]
    (report,) = cases_of(tmp_path, reranker, *arguments)
    assert report["figures"]["sequences"] == 200
    assert report["figures"]["cached_tokens"] == 2 * 99 * saved
