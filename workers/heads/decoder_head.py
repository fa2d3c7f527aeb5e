"""The end of a decoder's last stage, by the task."""

from typing import Protocol

import torch

from workers.contract.config import Task
from workers.heads.base import HeadResult
from workers.heads.generate import GenerateHead
from workers.heads.last_token import LastTokenHead
from workers.heads.last_token_scores import LastTokenScores
from workers.heads.requested_outputs import RequestedOutputs
from workers.heads.vector_modules import VectorModules
from workers.models.base import StageModel
from workers.sampling.adjustments import TokenMask
from workers.sampling.sampling_table import SamplingTable
from workers.step.slot_table import SlotTable


class DecoderHead(Protocol):
    """Makes one step's result of its final hidden states."""

    def __call__(
        self, requested: RequestedOutputs, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> HeadResult:
        """Queue the work on a step's final hidden states, as `forward` leaves them. `mask` is given
        where the step has rows with a grammar."""
        ...

    def warm_up(self, hidden: torch.Tensor) -> None:
        """Run everything whose first use takes long, on the state of one token [1, hidden_size].
        May overwrite slot 0."""
        ...


def decoder_head(
    task: Task,
    model: StageModel,
    modules: VectorModules,
    slots: SlotTable,
    sampling: SamplingTable | None,
) -> DecoderHead:
    """`sampling` is given for a model that generates."""
    if sampling is not None:
        return GenerateHead(model, slots, sampling)
    if task == "embed":
        return LastTokenHead(modules)
    return LastTokenScores(model, reranks=task == "rerank")
