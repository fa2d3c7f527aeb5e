"""Whole generations on the GPU against a float32 reference on the CPU, in every way to run them.

tests/workers/models/test_equivalence.py holds the CPU to the same. Each test prints a line that
says how well the two agree: `-rP` shows it.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import get_args

import msgspec
import numpy as np
import pytest
import torch

from engine_core.messages import SamplingParams
from tests.workers.equivalence import (
    MODELS,
    WAYS,
    Lesson,
    Lessons,
    check_mutation,
    check_way,
)
from tests.workers.inline_engine import MUTATIONS, InlineEngine, Sampled, Way
from tests.workers.inline_pipeline import Fault
from tests.workers.models import test_equivalence as on_cpu
from tests.workers.teacher import Comparison
from workers.attention.backend_selection import AttentionBackendError
from workers.contract.config import Dtype
from workers.contract.token_sampling import TokenSampling

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

GPU = Way(device="cuda", backend="triton")
WITH_GRAPHS = replace(GPU, graphs=True)
GPU_WAYS = {
    f"{name}{suffix}": replace(way, device="cuda", backend="triton", graphs=graphs)
    for name, way in WAYS.items()
    for graphs, suffix in ((False, ""), (True, "_with_graphs"))
}
SOME_WAYS = [
    "plain",
    "ahead_with_graphs",
    "large_blocks_with_graphs",
    "two_stages_with_graphs",
    "two_stages_chunks",
]
"""For random models: what the demo model does not show is in their shapes."""

REFERENCE_THREADS = 4
NAMED = np.array([7, 300, 11, 42], np.int32).tobytes()

TEXTS_EQUAL = 0.95
"""Share of the sampled texts that must be equal: a sum may round to the other side of an edge."""


@pytest.fixture(autouse=True, scope="module")
def _few_threads() -> Generator[None]:
    """The reference's products are small: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(REFERENCE_THREADS)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> Lessons:
    return Lessons(tmp_path_factory.mktemp("models"), count=64, longest=300, tokens=24)


@pytest.fixture(scope="module")
def way_of() -> Callable[..., Way]:
    """For the tests of the CPU: with graphs, unless it is plain."""
    on_gpu = {"device": "cuda", "backend": "triton"}
    return lambda name="plain", **changes: replace(
        WAYS[name], **on_gpu, graphs=name != "plain" or bool(changes), **changes
    )


@pytest.mark.parametrize(
    ("model", "way"),
    [*(("demo", way) for way in GPU_WAYS), *((m, way) for m in MODELS[1:] for way in SOME_WAYS)],
)
def test_no_way_changes_the_text(lessons: Lessons, model: str, way: str) -> None:
    engine = check_way(lessons(model), GPU_WAYS[way])
    assert (engine.graph_steps > 0) == GPU_WAYS[way].graphs


def test_every_log_probability(lessons: Lessons) -> None:
    for model in MODELS:
        check_way(lessons(model), WITH_GRAPHS, every_logprob=True)


test_scores_of_prompts = on_cpu.test_scores_of_prompts
test_the_prefix_cache = on_cpu.test_the_prefix_cache_does_not_change_the_text
test_rows_of_one_step_share = on_cpu.test_rows_of_one_step_share_their_beginning
test_slots_change_hands = on_cpu.test_slots_change_hands_while_wasted_rows_are_in_flight
test_preemption = on_cpu.test_preemption_does_not_change_the_text


@pytest.mark.parametrize("fault", get_args(Fault))
def test_stages_that_do_not_wait_for_each_other_are_noticed(lessons: Lessons, fault: Fault) -> None:
    lesson, way = lessons("demo"), GPU_WAYS["two_stages_with_graphs"]
    engine = InlineEngine(lesson.folder, way, fault=fault)
    comparison = lesson.generate(engine, Comparison(lesson.references, forced=False))
    with pytest.raises(AssertionError, match="log-probabilities within"):
        comparison.check()


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("way", [GPU, WITH_GRAPHS], ids=["launched", "graphs"])
def test_a_mutation_is_noticed(lessons: Lessons, way: Way, mutation: str) -> None:
    check_mutation(lessons("demo"), way, mutation)


def test_products_in_float32_are_exact_and_less_is_noticed(lessons: Lessons) -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    torch.set_float32_matmul_precision("high")  # TF32: ten bits of mantissa
    try:
        _, comparison = lessons(MODELS[1]).run(GPU)
    finally:
        torch.set_float32_matmul_precision("highest")
    print(comparison)
    with pytest.raises(AssertionError, match="log-probabilities within"):
        comparison.check()


@pytest.mark.parametrize("backend", ["sdpa", "flashinfer"])
def test_other_backends_in_float32(lessons: Lessons, backend: str) -> None:
    for model in ("demo", MODELS[3]):
        run_if_it_fits(lessons(model), replace(GPU, backend=backend, block_size=64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", MODELS)
def test_half_precision_parts_only_at_small_gaps(
    lessons: Lessons, model: str, dtype: Dtype
) -> None:
    check_way(lessons(model), replace(WITH_GRAPHS, dtype=dtype, max_step_tokens=2048))


@pytest.mark.parametrize("block_size", [64, 128])
@pytest.mark.parametrize("backend", ["flash_attn", "flashinfer", "sdpa"])
def test_other_backends_in_half_precision(lessons: Lessons, backend: str, block_size: int) -> None:
    way = replace(WITH_GRAPHS, backend=backend, block_size=block_size, dtype="bfloat16")
    run_if_it_fits(lessons(MODELS[3]), way)


def run_if_it_fits(lesson: Lesson, way: Way) -> None:
    """Skips a backend that is not for this model or not installed; one that fails is no such."""
    try:
        check_way(lesson, way)
    except AttentionBackendError as error:
        if "cannot do" not in str(error):
            raise
        pytest.skip(str(error))


def sampled_texts(lesson: Lesson, way: Way, params: SamplingParams) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in lesson.prompts]

    def listen(sampled: Sampled) -> int:
        texts[sampled.prompt].append(sampled.token)
        return sampled.token

    engine = InlineEngine(lesson.folder, way)
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.generate(lesson.prompts, params, listen)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return texts


DRAWN = SamplingParams(
    sampling=TokenSampling(temperature=0.9, top_p=0.95),
    max_tokens=24,
    seed=5,
    ignore_eos=True,
    logprobs=2,
)


@pytest.mark.parametrize("way", ["ahead", "few_at_once_with_graphs", "chunks_with_graphs"])
def test_a_seed_gives_the_same_text_in_any_batch(lessons: Lessons, way: str) -> None:
    lesson = lessons("demo")
    plain = sampled_texts(lesson, GPU, DRAWN)
    texts = sampled_texts(lesson, GPU_WAYS[way], DRAWN)
    equal = np.mean([one == other for one, other in zip(plain, texts, strict=True)])
    print(f"{equal:.1%} of the sampled texts equal")
    assert equal >= TEXTS_EQUAL
    assert len({tuple(text) for text in texts}) > 60


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("backend", ["triton", "sdpa"])
def test_nothing_is_compiled_once_a_stage_is_warm(
    lessons: Lessons, monkeypatch: pytest.MonkeyPatch, backend: str, temperature: float
) -> None:
    """Whatever the numbers of rows and of tokens, and whether steps can be captured: it would hold
    up every request."""
    lesson = lessons("demo")
    way = replace(WITH_GRAPHS, backend=backend, dtype="bfloat16", max_step_tokens=2048)
    way = replace(way, depth=2, arrivals=7)
    engine = InlineEngine(lesson.folder, way)
    compiled: list[str] = []
    hook = "triton.knobs.runtime.jit_cache_hook"
    monkeypatch.setattr(hook, lambda **given: compiled.append(given["repr"]))
    sampling = TokenSampling(temperature=temperature, top_p=0.9)
    params = SamplingParams(sampling=sampling, max_tokens=16, ignore_eos=True, logprobs=1)
    params = msgspec.structs.replace(params, logprob_token_ids=NAMED)
    engine.generate(lesson.prompts, params, lambda sampled: sampled.token)
    assert compiled == []


@pytest.mark.parametrize("graphs", [False, True])
def test_no_step_waits_for_the_device(lessons: Lessons, graphs: bool) -> None:
    everything = SamplingParams(
        sampling=TokenSampling(
            temperature=1.2,
            top_k=40,
            top_p=0.9,
            min_p=0.01,
            presence_penalty=0.4,
            frequency_penalty=0.2,
            repetition_penalty=1.1,
        ),
        max_tokens=6,
        logit_bias={9: 2.0},
        stop_token_ids=frozenset({3}),
        min_tokens=6,
        logprobs=3,
        prompt_logprobs=2,
        logprob_token_ids=NAMED,
        ignore_eos=True,
    )
    way = replace(GPU, graphs=graphs, depth=2, arrivals=2)
    texts = sampled_texts(lessons("demo"), way, everything)
    assert [len(text) for text in texts] == [6] * len(texts)
