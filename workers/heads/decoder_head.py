"""The end of a decoder's last stage, by the task."""

import torch

from workers.contract.config import Task
from workers.contract.messages import ClassifyOutput, EmbedOutput
from workers.heads.base import EncodedRows
from workers.heads.generate import GenerateHead
from workers.heads.requested_outputs import RequestedOutputs
from workers.models.base import StageModel
from workers.sampling.adjustments import TokenMask
from workers.sampling.sampling_table import SamplingTable
from workers.step.slot_table import SlotTable


class LastTokenHead:
    """Vectors or scores of rows that end in a step, from the final state of their last tokens.

    A vector is the state itself, or what the modules behind sentence-transformers' Pooling make of
    it. A classifier has a score for each label; a reranker's is the logit of one token, or the
    difference of two tokens' logits.
    """

    def __init__(self, model: StageModel, task: Task) -> None:
        self._model, self._task = model, task

    def __call__(
        self, requested: RequestedOutputs, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> EncodedRows:
        """Queue the work on a step's final hidden states; nothing is sampled or masked."""
        del mask
        states = requested.last_states(hidden)
        if self._task == "embed":
            return EncodedRows(EmbedOutput, {"vectors": self._model.compute_logits(states.float())})
        logits = self._model.compute_logits(states).float()
        if self._task == "rerank" and logits.shape[1] == 2:
            logits = logits[:, :1] - logits[:, 1:]
        return EncodedRows(ClassifyOutput, {"logits": logits})

    def warm_up(self, hidden: torch.Tensor) -> None:
        """There is nothing to compile."""


def decoder_head(
    task: Task, model: StageModel, slots: SlotTable, sampling: SamplingTable | None
) -> GenerateHead | LastTokenHead:
    """`sampling` is given for a model that generates."""
    if sampling is not None:
        return GenerateHead(model, slots, sampling)
    return LastTokenHead(model, task)
