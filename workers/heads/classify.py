"""One logit a label for each row: where a rerank score is made."""

from dataclasses import dataclass

import torch

from workers.contract.embedding_modules import PoolingConfig, PoolingMode
from workers.contract.messages import ClassifyOutput
from workers.device.transfer import to_bytes
from workers.heads.base import to_host
from workers.heads.pooling import first_tokens, pool
from workers.models.base import StageModel
from workers.step.packed_step import PackedStep


@dataclass(frozen=True, slots=True)
class ClassifyResult:
    """float32[R, num_labels]"""

    logits: torch.Tensor

    def to_host(self) -> "ClassifyResult":
        return ClassifyResult(to_host(self.logits))

    def to_output(self, step: int) -> ClassifyOutput:
        return ClassifyOutput(step, logits=to_bytes(self.logits))


class ClassifyHead:
    """The model's classifier over each row's pooled states."""

    def __init__(self, model: StageModel, pooling: PoolingMode) -> None:
        self._model = model
        self._pooling = PoolingConfig(modes=(pooling,))

    def __call__(self, step: PackedStep, hidden: torch.Tensor) -> ClassifyResult:
        if self._pooling.modes == ("cls",):
            states = first_tokens(hidden, step)
        else:
            states = pool(hidden, step, self._pooling).to(hidden.dtype)
        return ClassifyResult(self._model.compute_logits(states).float())
