"""All stages of a model in one process, driven by step messages as worker processes are."""

from pathlib import Path

import msgspec
import numpy as np
import torch

from tests.workers.checkpoints import BERT, load_share, worker_config
from workers.attention.backend_selection import select_backends
from workers.contract.config import Device, Task, WorkerConfig
from workers.contract.messages import (
    ClassifyOutput,
    DecodeStep,
    EmbedOutput,
    EmbedSparseOutput,
    EncodeStep,
    GenerateOutput,
    Logprobs,
    StepMask,
    StepOutput,
)
from workers.contract.model_config import ModelConfig
from workers.stage.decode_runner import DecodeRunner
from workers.stage.model_runner import EncodeRunner, attention_needs

NUM_BLOCKS = 96


class Stages:
    """Runners of every stage of a decoder, hidden states handed on directly."""

    def __init__(
        self,
        folder: Path,
        *,
        task: Task = "generate",
        num_stages: int = 1,
        backend: str = "auto",
        device: Device = "cpu",
        model: ModelConfig | None = None,
    ) -> None:
        configs = _configs(folder, task, num_stages, backend, device, model)
        self.block_size = configs[0].execution.block_size
        self.runners: list[DecodeRunner] = []
        for config in configs:
            chosen = select_backends(backend, attention_needs(config.execution))
            runner = DecodeRunner(config, load_share(config), chosen, NUM_BLOCKS)
            with torch.inference_mode():
                runner.warm_up()
            self.runners.append(runner)

    @torch.inference_mode()
    def run(
        self, message: DecodeStep, mask: StepMask | None = None
    ) -> tuple[torch.Tensor, GenerateOutput]:
        """The last stage's hidden states [S, hidden_size] of the rows that sample, in steps that
        score nothing, and its results. `mask` is that of a step with masked rows."""
        hidden = batch = None
        for runner in self.runners:
            batch = runner.prepare(message)
            hidden = runner.forward(batch, hidden)
        assert batch is not None
        assert hidden is not None
        last = self.runners[-1]
        result = last.run_head(batch, hidden, mask).to_host()
        if hidden.is_cuda:
            torch.cuda.synchronize()
        output, sampling = result.to_output(message.step), batch.requested.sampling
        assert isinstance(output, GenerateOutput)
        if sampling is None:
            return hidden[:0], output
        tokens = torch.from_numpy(sampled_tokens(output).copy()).to(hidden.device)
        self.runners[0].slots.store_last_tokens(sampling.device_slots, tokens)
        return hidden[: len(sampling.device_slots)], output


class EncoderStages:
    """The same of an encoder."""

    def __init__(
        self,
        folder: Path,
        *,
        task: Task,
        num_stages: int = 1,
        backend: str = "auto",
        device: Device = "cpu",
    ) -> None:
        self._runners: list[EncodeRunner] = []
        for config in _configs(folder, task, num_stages, backend, device):
            chosen = select_backends(backend, attention_needs(config.execution))
            runner = EncodeRunner(config, load_share(config), chosen)
            with torch.inference_mode():
                runner.warm_up()
            self._runners.append(runner)

    @torch.inference_mode()
    def run(self, message: EncodeStep) -> StepOutput:
        """The last stage's results."""
        hidden = batch = None
        for runner in self._runners:
            batch = runner.prepare(message)
            hidden = runner.forward(batch, hidden)
        assert batch is not None
        assert hidden is not None
        result = self._runners[-1].run_head(batch, hidden).to_host()
        if hidden.is_cuda:
            torch.cuda.synchronize()
        return result.to_output(message.step)


def _configs(
    folder: Path,
    task: Task,
    num_stages: int,
    backend: str,
    device: Device,
    model: ModelConfig | None = None,
) -> list[WorkerConfig]:
    config = worker_config(folder, task=task, num_stages=num_stages, device=device, model=model)
    execution = msgspec.structs.replace(config.execution, attention_backend=backend)
    return [WorkerConfig(execution=execution, stage=stage) for stage in range(num_stages)]


def sampled_tokens(output: GenerateOutput) -> np.ndarray:
    """int32[S]"""
    return np.frombuffer(output.tokens, np.int32)


def vectors_of(output: StepOutput, rows: int) -> np.ndarray:
    """Dense vectors or logits, float32[R, D]"""
    assert isinstance(output, EmbedOutput | ClassifyOutput)
    data = output.vectors if isinstance(output, EmbedOutput) else output.logits
    return np.frombuffer(data, np.float32).reshape(rows, -1)


def dense(output: StepOutput) -> np.ndarray:
    """A small BERT's sparse vectors, float32[R, V]; of each row the indices ascend, and nothing is
    zero."""
    assert isinstance(output, EmbedSparseOutput)
    counts = np.frombuffer(output.counts, np.int32)
    entries = np.frombuffer(output.entries, np.float32).reshape(-1, 2)
    vectors = np.zeros((len(counts), BERT["vocab_size"]), np.float32)
    for vector, own in zip(vectors, np.split(entries, np.cumsum(counts)[:-1]), strict=True):
        indices = own[:, 0].astype(np.int64)
        assert (np.diff(indices) > 0).all()
        assert (own[:, 1] != 0).all()
        vector[indices] = own[:, 1]
    return vectors


def distributions(reported: Logprobs | None) -> np.ndarray:
    """Log-probabilities by token id, float32[N, V], of a report as wide as the vocabulary."""
    assert reported is not None
    ids = np.frombuffer(reported.top_ids, np.int32).reshape(-1, reported.width)
    values = np.frombuffer(reported.top, np.float32).reshape(-1, reported.width)
    by_id = np.empty_like(values)
    np.put_along_axis(by_id, ids.astype(np.int64), values, axis=1)
    return by_id
