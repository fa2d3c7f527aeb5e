"""All stages of a model in one process, driven by step messages as worker processes are."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch

from tests.workers.checkpoints import BERT, load_share, with_execution, worker_config
from workers.attention.backend_selection import select_backends
from workers.attention.base import AttentionBackend
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
from workers.device.choices import Choices
from workers.heads.decoder_head import RequestedOutputs
from workers.stage.decode_runner import DecodeRunner
from workers.stage.model_runner import EncodeRunner, attention_needs, num_tokens

NUM_BLOCKS = 96
RunnerT = TypeVar("RunnerT", DecodeRunner, EncodeRunner)


class _AllStages(ABC, Generic[RunnerT]):
    """Runners of every stage, hidden states handed on directly."""

    def __init__(
        self,
        folder: Path,
        *,
        task: Task = "generate",
        num_stages: int = 1,
        backend: str = "auto",
        device: Device = "cpu",
        model: ModelConfig | None = None,
        **changes: Any,
    ) -> None:
        """With `changes` of the execution's configuration."""
        whole = worker_config(folder, task=task, num_stages=num_stages, device=device, model=model)
        execution = with_execution(whole, attention_backend=backend, **changes).execution
        self.block_size = execution.block_size
        self.runners: list[RunnerT] = []
        for stage in range(num_stages):
            chosen = select_backends(backend, attention_needs(execution), Choices())
            runner = self._runner(WorkerConfig(execution=execution, stage=stage), chosen)
            with torch.inference_mode():
                runner.warm_up()
            self.runners.append(runner)

    @abstractmethod
    def _runner(self, config: WorkerConfig, backends: list[AttentionBackend]) -> RunnerT: ...

    @torch.inference_mode()
    def _compute(self, message: Any, mask: StepMask | None = None) -> tuple[Any, Any, StepOutput]:
        """The last stage's tensors of a step, hidden states, and results."""
        hidden = batch = None
        runners = cast("list[Any]", self.runners)
        for runner in runners:
            batch = runner.prepare(message)
            # What a stage sends: steps may be captured in other sizes there.
            sent = None if hidden is None else hidden[: num_tokens(message)]
            hidden = runner.forward(batch, sent)
        assert hidden is not None
        bits = b"" if mask is None else mask.bits
        result = runners[-1].run_head(batch, hidden, lambda: bits).to_host()
        if hidden.is_cuda:
            torch.cuda.synchronize()
        return batch, hidden, result.to_output(message.step)


class Stages(_AllStages[DecodeRunner]):
    def _runner(self, config: WorkerConfig, backends: list[AttentionBackend]) -> DecodeRunner:
        return DecodeRunner(config, load_share(config), backends, NUM_BLOCKS)

    def run(self, message: DecodeStep, mask: StepMask | None = None) -> GenerateOutput:
        """The last stage's results. `mask` is that of a step with masked rows."""
        batch, _, output = self._compute(message, mask)
        assert isinstance(output, GenerateOutput)
        self.keep_tokens(batch.requested, output)
        return output

    def keep_tokens(self, requested: RequestedOutputs, output: StepOutput) -> None:
        """Store what the last stage has sampled in the first one's slots."""
        if requested.sampling is None:
            return
        assert isinstance(output, GenerateOutput)
        slots = requested.sampling.device_slots
        tokens = torch.from_numpy(sampled_tokens(output).copy()).to(slots.device)
        with torch.inference_mode():
            self.runners[0].slots.store_last_tokens(slots, tokens)


class EncoderStages(_AllStages[EncodeRunner]):
    def _runner(self, config: WorkerConfig, backends: list[AttentionBackend]) -> EncodeRunner:
        return EncodeRunner(config, load_share(config), backends)

    def run(self, message: EncodeStep) -> StepOutput:
        return self._compute(message)[2]

    def compute(self, message: EncodeStep) -> tuple[torch.Tensor, StepOutput]:
        """Every token's final state [T, hidden_size], and the last stage's results."""
        prepared, hidden, output = self._compute(message)
        return hidden[: prepared.tensors.num_tokens], output


def sampled_tokens(output: GenerateOutput) -> np.ndarray:
    """int32[S]"""
    return np.frombuffer(output.tokens, np.int32)


def vectors_of(output: StepOutput, rows: int) -> np.ndarray:
    """Dense vectors or logits, float32[R, D]"""
    assert isinstance(output, EmbedOutput | ClassifyOutput)
    data = output.vectors if isinstance(output, EmbedOutput) else output.logits
    return np.frombuffer(data, np.float32).reshape(rows, -1)


def dense(output: StepOutput) -> np.ndarray:
    """A small BERT's sparse vectors, float32[R, V]."""
    assert isinstance(output, EmbedSparseOutput)
    return dense_rows(output.counts, output.entries)


def dense_rows(row_counts: bytes, all_entries: bytes) -> np.ndarray:
    """float32[R, V]; of each row the indices ascend, and nothing is zero."""
    counts = np.frombuffer(row_counts, np.int32)
    entries = np.frombuffer(all_entries, np.float32).reshape(-1, 2)
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
