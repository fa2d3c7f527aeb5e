"""Shared prefixes on whole pipelines: tokens and log-probabilities are those of prompts alone."""

import random
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from engine_core.messages import SamplingParams
from tests.engine_core.integrity import check_blocks
from tests.workers.checkpoints import LLAMA
from tests.workers.inline_engine import InlineEngine, Sampled, Way
from workers.attention.backends import sdpa
from workers.contract.messages import DecodeStep
from workers.contract.token_sampling import GREEDY

STAGES = [1, 3, pytest.param(2, marks=pytest.mark.long)]
_PARAMS = SamplingParams(sampling=GREEDY, max_tokens=8, logprobs=2)

Texts = dict[tuple[int, int], tuple[list[int], np.ndarray]]
"""By prompt and index: the ids that were reported, the token first, and their log-probabilities."""


def prompts(prefix_len: int) -> list[list[int]]:
    draw = random.Random(prefix_len)
    tokens = range(3, LLAMA["vocab_size"])
    prefix = draw.choices(tokens, k=prefix_len)
    owns = [draw.choices(tokens, k=k) for k in (9, 1, 1, 7, 16, 2)]
    return [prefix + own for own in [*owns, owns[1]]]


def texts(
    folder: Path, way: Way, rows: list[list[int]], shared: int = 0, *, crowded: bool = False
) -> Texts:
    """Texts of the batch band, if all begin with `shared` tokens, which they then share, unless the
    cache is too small for that."""
    found: Texts = {}

    def judge(sampled: Sampled) -> int:
        found[sampled.prompt, sampled.index] = (sampled.ids.tolist(), sampled.logprobs)
        return sampled.token

    engine = InlineEngine(folder, way)
    engine.generate(rows, _PARAMS, judge, batch=shared > 0)
    usage = engine.scheduler.usage()
    assert usage.kv_blocks_used == 0
    check_blocks(engine.scheduler.kv)
    crowded = crowded or usage.preemptions > 0
    assert crowded or usage.cached_tokens >= shared * (len(rows) - 1)
    return found


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8_e4m3"])
@pytest.mark.parametrize(("prefix_len", "num_blocks"), [(18, 99), (19, 9), (16, 99), (37, 99)])
def test_each_row_gets_what_it_gets_alone(
    llama: Path,
    stages: int,
    kv_cache_dtype: Literal["auto", "fp8_e4m3"],
    prefix_len: int,
    num_blocks: int,
) -> None:
    rows = prompts(prefix_len)
    alone = texts(llama, Way(backend="naive", kv_cache_dtype=kv_cache_dtype), rows)
    way = Way(
        backend="naive",
        kv_cache_dtype=kv_cache_dtype,
        stages=stages,
        depth=stages + 1,
        num_blocks=num_blocks,
        max_step_tokens=24,
        block_size=8,
    )
    grouped = texts(llama, way, rows, prefix_len)
    assert grouped.keys() == alone.keys()
    for key, (ids, logprobs) in alone.items():
        assert grouped[key][0] == ids, key
        assert np.array_equal(grouped[key][1], logprobs), key


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("batch", [True, False])
def test_prefixes_that_are_attended_once_change_no_text(
    llama: Path, monkeypatch: pytest.MonkeyPatch, stages: int, batch: bool
) -> None:
    """Teacher-forced: each row goes on with the token that it gets alone. In the batch band, and as
    prompts that share whole blocks only."""
    monkeypatch.setattr(sdpa, "CPU_PREFIX_MIN_GAIN", -(1 << 40))
    rows = prompts(37)
    alone = texts(llama, Way(backend="naive"), rows)
    shared: list[bytes] = []

    def judge(sampled: Sampled) -> int:
        ids, logprobs = alone[sampled.prompt, sampled.index]
        assert np.allclose(sampled.logprobs, logprobs, atol=1e-4)
        assert sampled.token == ids[0] or logprobs[1] - logprobs[2] < 1e-3
        return ids[0]

    def noting(message: DecodeStep) -> DecodeStep:
        shared.append(message.groups)
        return message

    way = Way(backend="sdpa", stages=stages, block_size=8, max_step_tokens=64)
    engine = InlineEngine(llama, way, noting)
    engine.generate(rows, _PARAMS, judge, batch=batch)
    assert sum(map(bool, shared)) >= 4
    assert engine.scheduler.usage().kv_blocks_used == 0
