"""Encoders on the GPU against the CPU, which has tests against the libraries that define them."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.checkpoints import BERT, save_bert, save_masked_lm
from tests.workers.models.encoders import ENCODERS
from tests.workers.models.test_encoders import texts_for
from tests.workers.stages import EncoderStages, dense, vectors_of
from tests.workers.step_maker import encoder_step
from workers.contract.checkpoint.architectures import family_of
from workers.contract.config import Task
from workers.contract.messages import StepOutput
from workers.heads import encoder_head

pytestmark = pytest.mark.gpu

TEXTS = [
    random.Random(row).choices(range(1, BERT["vocab_size"]), k=length)
    for row, length in enumerate((3, 17, 1, 60, 5, 44, 100))
]
MODELS: dict[Task, Callable[[Path], Any]] = {
    "embed": save_bert,
    "embed_sparse": lambda folder: save_masked_lm(folder, bias=-1.0),
    "classify": lambda folder: save_bert(folder, labels=3),
}
BACKENDS = ["auto", "triton", "sdpa", "naive"]


def on_both(folder: Path, task: Task, backend: str) -> tuple[StepOutput, StepOutput]:
    """What the CPU and the GPU tell of the same texts."""
    MODELS[task](folder)
    step = encoder_step(TEXTS)
    expected = EncoderStages(folder, task=task).run(step)
    output = EncoderStages(folder, task=task, backend=backend, device="cuda").run(step)
    return expected, output


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("task", ["embed", "classify"])
def test_vectors_and_scores(tmp_path: Path, task: Task, backend: str) -> None:
    expected, output = on_both(tmp_path, task, backend)
    rows = len(TEXTS)
    np.testing.assert_allclose(vectors_of(output, rows), vectors_of(expected, rows), atol=2e-5)


@pytest.mark.parametrize("at_once", [512, 20])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, at_once: int
) -> None:
    """The same entries, but for those so close to zero that rounding decides."""
    monkeypatch.setattr(encoder_head, "TOKENS_AT_ONCE", at_once)
    outputs = on_both(tmp_path, "embed_sparse", backend)
    one, other = (dense(output) for output in outputs)
    assert 0.1 < (one == 0).mean() < 0.9
    np.testing.assert_allclose(other, one, atol=2e-5)


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
@pytest.mark.parametrize("name", ENCODERS)
def test_every_family(tmp_path: Path, name: str, backend: str) -> None:
    """With windows, rotary positions, biases by distance, gates."""
    tiny = ENCODERS[name]
    tiny.save(tmp_path)
    task = family_of(tiny.architecture).task
    step, rows = encoder_step(texts_for(tiny)), len(texts_for(tiny))
    on_cpu = EncoderStages(tmp_path, task=task).run(step)
    on_gpu = EncoderStages(tmp_path, task=task, backend=backend, device="cuda").run(step)
    read = dense if task == "embed_sparse" else lambda output: vectors_of(output, rows)
    np.testing.assert_allclose(read(on_gpu), read(on_cpu), atol=5e-5)
