"""All stages of a model in one process, driven by StepInputs as worker processes are."""

from pathlib import Path

import msgspec
import numpy as np
import torch

from tests.workers.checkpoints import BERT, worker_config
from workers.attention.backend_selection import select_backend
from workers.contract.config import Device, Task
from workers.contract.messages import Logprobs, StepInput, StepOutput
from workers.stage.model_runner import ModelRunner, attention_needs
from workers.stage.warm_up import warm_up
from workers.weights.loader import load_model

NUM_BLOCKS = 96


class Stages:
    """Runners of every stage, hidden states handed on directly."""

    def __init__(
        self,
        folder: Path,
        *,
        task: Task = "generate",
        num_stages: int = 1,
        backend: str = "auto",
        device: Device = "cpu",
    ) -> None:
        config = worker_config(folder, task=task, num_stages=num_stages, device=device)
        config = msgspec.structs.replace(config, attention_backend=backend)
        self.block_size = config.block_size
        self.runners: list[ModelRunner] = []
        for stage in range(num_stages):
            own = msgspec.structs.replace(config, stage=stage)
            runner = ModelRunner(
                own,
                load_model(own).model,
                select_backend(backend, attention_needs(own)),
                NUM_BLOCKS if task == "generate" else 0,
            )
            with torch.inference_mode():
                warm_up(runner, own)
            self.runners.append(runner)

    @torch.inference_mode()
    def run(self, message: StepInput) -> tuple[torch.Tensor, StepOutput]:
        """The last stage's hidden states [S, hidden_size] of the rows that sample, in steps that
        score nothing, and its report."""
        hidden = batch = None
        for runner in self.runners:
            batch = runner.prepare(message)
            hidden = runner.forward(batch, hidden)
        assert batch is not None
        assert hidden is not None
        result = self.runners[-1].report(batch, hidden).to_host()
        if hidden.is_cuda:
            torch.cuda.synchronize()
        output = result.to_output(message.step)
        if batch.wanted.sampling is not None:
            tokens = torch.from_numpy(sampled_tokens(output).copy()).to(hidden.device)
            own = batch.wanted.sampling.device_slots
            self.runners[0].slots.store_last_tokens(own, tokens)
        return hidden[: len(batch.wanted.sampling.slots) if batch.wanted.sampling else 0], output


def sampled_tokens(output: StepOutput) -> np.ndarray:
    """int32[S]"""
    return np.frombuffer(output.tokens, np.int32)


def pooled(output: StepOutput, rows: int) -> np.ndarray:
    """float32[R, D]"""
    return np.frombuffer(output.pooled, np.float32).reshape(rows, -1)


def dense(output: StepOutput) -> np.ndarray:
    """A small BERT's sparse vectors, float32[R, V]; of each row the indices ascend, and nothing is
    zero."""
    counts = np.frombuffer(output.counts, np.int32)
    entries = np.frombuffer(output.pooled, np.float32).reshape(-1, 2)
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
