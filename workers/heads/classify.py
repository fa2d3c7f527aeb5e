"""One logit a label for each row: where a rerank score is made."""

from dataclasses import dataclass

import torch

from workers.contract.messages import ClassifyOutput
from workers.device.transfer import to_bytes
from workers.heads.base import to_host
from workers.heads.pooling import first_tokens
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
    """The model's classifier over the state of each row's first token."""

    def __init__(self, model: StageModel) -> None:
        self._model = model

    def __call__(self, step: PackedStep, hidden: torch.Tensor) -> ClassifyResult:
        return ClassifyResult(self._model.compute_logits(first_tokens(hidden, step)).float())
