"""Engines of causal models that embed or score texts, over stages in this process."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine_core.messages import EncodeJob
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.fake_transport import Engine, FakeExecutor
from tests.engine_core.test_core import A
from tests.workers.inline_engine import Mutation, unchanged
from tests.workers.staged_engine import DecoderRunner, Visit, serve
from tests.workers.stages import NUM_BLOCKS, Stages
from workers.contract.checkpoint.checkpoint_config import read_model_config


def start_engine(
    folder: Path, stages: Stages, mutate: Mutation = unchanged, **changes: Any
) -> Engine:
    """An engine core over these stages, perhaps with wrong steps."""
    model = read_model_config(folder)
    tokenizer = Tokenizer.for_model(model, "auto")
    config = stages.runners[0].config
    names = "model task max_model_len max_running max_step_tokens block_size num_stages".split()
    given: dict[str, Any] = {name: getattr(config, name) for name in names}
    given |= {"max_pending_rows": 1000, "max_pending_tokens": 100_000}
    executor = FakeExecutor(DecoderRunner(stages, mutate), len(stages.runners))
    return Engine(tokenizer, model.architecture, NUM_BLOCKS, executor, **given | changes)


def answers(engine: Engine, jobs: Sequence[EncodeJob]) -> dict[int, np.ndarray]:
    """Each job's vectors or scores, float32[N, D]. Every row came exactly once."""
    earlier = len(engine.clients.outputs(A))
    with torch.inference_mode():
        serve(engine, [Visit(job, number % 3) for number, job in enumerate(jobs)], random.Random(1))
    rows: dict[int, list[int]] = {job.id: [] for job in jobs}
    numbers: dict[int, list[np.ndarray]] = {job.id: [] for job in jobs}
    for outputs in engine.clients.outputs(A)[earlier:]:
        assert not outputs.failed
        for part in outputs.encoded:
            own = np.frombuffer(part.rows, np.int32).tolist()
            rows[part.job] += own
            numbers[part.job].append(np.frombuffer(part.values, np.float32).reshape(len(own), -1))
    for job in jobs:
        assert sorted(rows[job.id]) == list(range(len(job.texts) + len(job.ids)))
    return {job: np.concatenate(numbers[job])[np.argsort(rows[job])] for job in rows}


def refusal(engine: Engine, job: EncodeJob) -> str:
    """The message of a refused job."""
    engine.clients.put(A, job)
    engine.iterate_until(lambda: any(outputs.failed for outputs in engine.clients.outputs(A)))
    (failed,) = [failed for outputs in engine.clients.outputs(A) for failed in outputs.failed]
    return failed.message


def cached_tokens(engine: Engine) -> int:
    """Tokens that were not computed, because the prefix cache had them."""
    return engine.core._scheduler.usage().cached_tokens
