"""Generations agree with a float32 reference whatever the way, on the CPU.

tests/gpu/test_generation.py holds the GPU to the same.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.workers.equivalence import (
    DEMO,
    MODELS,
    WAYS,
    Lessons,
    check_mutation,
    check_preemption,
    check_prefix_cache,
    check_scores,
    check_stops,
    check_way,
    prompts_that_begin_alike,
)
from tests.workers.inline_engine import MUTATIONS, Way
from workers.contract.config import Dtype

MOST_MODELS = [
    # Another with a KV head for each query head.
    pytest.param(model, marks=pytest.mark.long if model == "heads_3_of_128_kv_3" else ())
    for model in MODELS
]


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> Lessons:
    return Lessons(tmp_path_factory.mktemp("models"), count=10, longest=90, tokens=10)


@pytest.fixture(scope="module")
def way_of() -> Callable[..., Way]:
    """A way by its name, with changes. The GPU has its own."""
    return lambda name="plain", **changes: replace(WAYS[name], **changes)


@pytest.mark.parametrize("model", MOST_MODELS)
def test_the_reference_is_transformers(lessons: Lessons, model: str) -> None:
    lesson = lessons(model)
    theirs = LlamaForCausalLM.from_pretrained(lesson.folder, dtype=torch.float32).eval()
    for prompt, reference in zip(lesson.prompts, lesson.references, strict=True):
        with torch.inference_mode():
            logits = theirs(torch.tensor([prompt + reference.tokens])).logits[0]
        expected = logits[len(prompt) - 1 : -1].log_softmax(-1).numpy()
        np.testing.assert_allclose(reference.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MOST_MODELS)
def test_no_way_changes_the_text(lessons: Lessons, model: str, way: str) -> None:
    check_way(lessons(model), WAYS[way])


@pytest.mark.parametrize(
    ("stages", "ahead"),
    [(2, 0), (4, 1), *(pytest.param(*case, marks=pytest.mark.long) for case in ((3, 1), (4, 0)))],
)
def test_no_number_of_micro_batches_changes_the_text(
    lessons: Lessons, stages: int, ahead: int
) -> None:
    """P at first, P + 2 while prompts wait for rounds of steps, which is the greatest depth."""
    way = Way(
        stages=stages,
        depth=stages + 2 + ahead,
        steps_ahead=ahead,
        max_step_tokens=12,
        max_running=8,
        arrivals=1,
    )
    engine = check_way(lessons("demo"), way)
    assert engine.deepest == way.depth


@pytest.mark.parametrize("model", MOST_MODELS)
def test_every_log_probability(lessons: Lessons, model: str) -> None:
    check_way(lessons(model), Way(), every_logprob=True)


@pytest.mark.parametrize("way", ["plain", "chunks"])
@pytest.mark.parametrize("model", ["demo", MODELS[1]])
def test_scores_of_prompts(
    lessons: Lessons, way_of: Callable[..., Way], model: str, way: str
) -> None:
    check_scores(lessons(model), way_of(way))


@pytest.mark.parametrize("way", ["plain", "chunks", "large_blocks"])
def test_the_prefix_cache_does_not_change_the_text(
    lessons: Lessons, way_of: Callable[..., Way], way: str
) -> None:
    check_prefix_cache(lessons("demo"), way_of(way))


@pytest.mark.parametrize("way", ["plain", pytest.param("chunks", marks=pytest.mark.long)])
def test_rows_of_one_step_share_their_beginning(
    lessons: Lessons, way_of: Callable[..., Way], way: str
) -> None:
    engine = check_way(lessons.of(DEMO, prompts_that_begin_alike(4096)), way_of(way))
    assert engine.scheduler.usage().cached_tokens >= 5 * 64


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.long), 2])
def test_preemption_does_not_change_the_text(
    lessons: Lessons, way_of: Callable[..., Way], depth: int
) -> None:
    check_preemption(lessons("demo"), way_of(depth=depth))


@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.long)])
def test_preemption_and_cached_prefixes_across_stages(lessons: Lessons, stages: int) -> None:
    way = Way(stages=stages, depth=stages + 3)
    check_preemption(lessons("demo"), way)
    check_prefix_cache(lessons("demo"), way)


@pytest.mark.parametrize(("stages", "depth"), [(1, 2), (2, 3), (2, 5)])
def test_slots_change_hands_while_wasted_rows_are_in_flight(
    lessons: Lessons, way_of: Callable[..., Way], stages: int, depth: int
) -> None:
    check_stops(lessons("demo"), way_of(stages=stages, depth=depth, max_running=4))


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("model", ["demo", MODELS[1]])
def test_a_mutation_is_noticed(lessons: Lessons, model: str, mutation: str) -> None:
    check_mutation(lessons(model), Way(), mutation)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", ["demo", MODELS[1]])
def test_half_precision_parts_only_at_small_gaps(
    lessons: Lessons, model: str, dtype: Dtype
) -> None:
    check_way(lessons(model), Way(dtype=dtype))
