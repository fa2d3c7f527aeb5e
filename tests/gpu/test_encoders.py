"""Encoders on the GPU against the CPU, which has tests against the libraries that define them."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.profiler import ProfilerActivity, profile

from tests.workers.checkpoints import random_texts, save_masked_lm
from tests.workers.models.encoders import ENCODERS
from tests.workers.models.test_encoders import texts_for
from tests.workers.stages import EncoderStages, dense, vectors_of
from tests.workers.step_maker import encoder_step
from workers.attention.backend_selection import AttentionBackendError
from workers.contract.checkpoint.architectures import family_of
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import Dtype, Task
from workers.contract.messages import EncodeStep
from workers.contract.quantization import FROM_16_BITS
from workers.graphs import text_graphs
from workers.heads import encoder_head

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TEXTS = random_texts(3, 17, 1, 60, 5, 44, 100)
CAPTURED = ["bert", "bert_label", "bert_words", "mpnet", "modernbert", "eurobert_late", "nomicbert"]
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
    if name.startswith("deberta") and backend == "triton":
        with pytest.raises(AttentionBackendError, match="no disentangled attention"):
            on_both(tmp_path, task, backend, texts)
        return
    on_cpu, on_gpu = on_both(tmp_path, task, backend, texts)
    np.testing.assert_allclose(on_gpu, on_cpu, atol=5e-5)


def test_weights_in_fp8(tmp_path: Path) -> None:
    """A CPU dequantises them, and quantises no rows."""
    tiny = ENCODERS["bert"]
    tiny.save(tmp_path)
    texts, model = texts_for(tiny), replace(read_model_config(tmp_path), quantization=FROM_16_BITS)
    both = [
        EncoderStages(tmp_path, task="embed", model=model),
        EncoderStages(tmp_path, task="embed", model=model, device="cuda", dtype="bfloat16"),
    ]
    wanted, got = (vectors_of(stages.run(encoder_step(texts)), len(texts)) for stages in both)
    lengths = np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1)
    assert ((wanted * got).sum(axis=1) > 0.98 * lengths).all()


def launches(stages: EncoderStages, step: EncodeStep) -> Counter[str]:
    """Calls of CUDA's runtime for one step, by name."""
    stages.run(step)
    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=both, acc_events=True) as profiler:
        stages.run(step)
    return Counter({event.key: event.count for event in profiler.key_averages()})


@torch.inference_mode()
def is_captured(stages: EncoderStages, step: EncodeStep) -> bool:
    return stages.runners[0].prepare(step).graph is not None


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize(
    ("backend", "dtype", "atol"), [("triton", "float32", 2e-6), ("flash_attn", "bfloat16", 2e-2)]
)
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_steps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    backend: str,
    dtype: Dtype,
    atol: float,
    num_stages: int,
) -> None:
    """They give what steps give that are launched kernel by kernel, and are launched at once."""
    if (name, backend) == ("mpnet", "flash_attn"):
        pytest.skip("no position bias")
    monkeypatch.setattr(text_graphs, "LAUNCHES_MATTER", float("inf"))
    tiny = ENCODERS[name]
    tiny.save(tmp_path)
    task = family_of(tiny.architecture).task
    own = {"backend": backend, "dtype": dtype, "num_stages": num_stages}
    stages = EncoderStages(tmp_path, task=task, device="cuda", **own)
    texts = texts_for(tiny)
    steps = [encoder_step(texts), encoder_step(texts[-2:]), encoder_step([[7] * 32] * 8)]
    captured = [stages.run(step) for step in steps]
    assert all(is_captured(stages, step) for step in steps)
    once = launches(stages, steps[0])
    for runner in stages.runners:
        runner._graphs = None
    one_by_one = launches(stages, steps[0])
    assert once["cudaGraphLaunch"] == num_stages
    kernels = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
    few, many = (sum(own[key] for key in kernels) for own in (once, one_by_one))
    assert few <= many - 4 * 5
    read = dense if task == "embed_sparse" else lambda output: vectors_of(output, 1)
    for step, output in zip(steps, captured, strict=True):
        np.testing.assert_allclose(read(output), read(stages.run(step)), atol=atol)


def test_what_cannot_be_captured_is_launched(tmp_path: Path) -> None:
    """Scores by distance of what two tokens are have no kernel of ours."""
    ENCODERS["deberta"].save(tmp_path)
    stages = EncoderStages(tmp_path, task="embed", device="cuda")
    assert not is_captured(stages, encoder_step(TEXTS))
