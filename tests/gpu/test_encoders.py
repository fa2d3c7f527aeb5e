"""Encoders on the GPU against the CPU, which has tests against the libraries that define them."""

from pathlib import Path

import numpy as np
import pytest

from tests.workers.checkpoints import random_texts, save_masked_lm
from tests.workers.models.encoders import ENCODERS
from tests.workers.models.test_encoders import texts_for
from tests.workers.stages import EncoderStages, dense, vectors_of
from tests.workers.step_maker import encoder_step
from workers.contract.checkpoint.architectures import family_of
from workers.contract.config import Task
from workers.heads import encoder_head

pytestmark = pytest.mark.gpu

TEXTS = random_texts(3, 17, 1, 60, 5, 44, 100)
BACKENDS = ["auto", "triton", "sdpa", "naive"]


def on_both(folder: Path, task: Task, backend: str, texts: list[list[int]]) -> list[np.ndarray]:
    """Vectors or scores by the CPU and by the GPU."""
    step = encoder_step(texts)
    outputs = [
        EncoderStages(folder, task=task).run(step),
        EncoderStages(folder, task=task, backend=backend, device="cuda").run(step),
    ]
    read = dense if task == "embed_sparse" else lambda output: vectors_of(output, len(texts))
    return [read(output) for output in outputs]


@pytest.mark.parametrize("at_once", [512, 20])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, at_once: int
) -> None:
    """The same entries, but for those so close to zero that rounding decides."""
    monkeypatch.setattr(encoder_head, "TOKENS_AT_ONCE", at_once)
    save_masked_lm(tmp_path, bias=-1.0)
    one, other = on_both(tmp_path, "embed_sparse", backend, TEXTS)
    assert 0.1 < (one == 0).mean() < 0.9
    np.testing.assert_allclose(other, one, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ENCODERS)
def test_every_family(tmp_path: Path, name: str, backend: str) -> None:
    tiny = ENCODERS[name]
    tiny.save(tmp_path)
    texts, task = texts_for(tiny), family_of(tiny.architecture).task
    on_cpu, on_gpu = on_both(tmp_path, task, backend, texts)
    np.testing.assert_allclose(on_gpu, on_cpu, atol=5e-5)
