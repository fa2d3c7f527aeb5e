"""One score a label for each row of a causal model, from the final state of its last token."""

import torch

from workers.heads.classify import ClassifyResult
from workers.heads.requested_outputs import RequestedOutputs
from workers.models.base import StageModel
from workers.sampling.adjustments import TokenMask


class LastTokenScores:
    """A classifier's logits; or a reranker's score, the logit of one token or the difference of
    two tokens' logits."""

    def __init__(self, model: StageModel, *, reranks: bool) -> None:
        self._model, self._reranks = model, reranks

    def __call__(
        self, requested: RequestedOutputs, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> ClassifyResult:
        del mask  # nothing is sampled
        logits = self._model.compute_logits(requested.last_states(hidden)).float()
        if self._reranks and logits.shape[1] == 2:
            logits = logits[:, :1] - logits[:, 1:]
        return ClassifyResult(logits)

    def warm_up(self, hidden: torch.Tensor) -> None:
        """There is nothing to compile."""
