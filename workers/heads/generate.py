"""Samples tokens and scores prompt tokens."""

from dataclasses import dataclass

import torch

from workers.contract.messages import GenerateOutput
from workers.device.transfer import to_bytes
from workers.device.tuning import WARM_LM_HEAD_ROWS
from workers.heads.base import to_host
from workers.heads.requested_outputs import RequestedOutputs, ScoringInput
from workers.models.base import StageModel
from workers.sampling.adjustments import TokenMask
from workers.sampling.logprobs import TokenLogprobs, log_probabilities, ranks
from workers.sampling.sampler import sample
from workers.sampling.sampling_table import SamplingTable
from workers.sampling.sampling_warm_up import warm_up_sampling
from workers.step.slot_table import SlotTable

SCORED_AT_ONCE = 512
"""Positions whose logits are held together: a long prompt times a vocabulary is gigabytes."""


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Tokens int32[S] of the sampled rows, with their log-probabilities if requested, and those of
    scored prompt tokens; None where the step has none."""

    tokens: torch.Tensor | None = None
    sampled: TokenLogprobs | None = None
    scored: TokenLogprobs | None = None

    def to_host(self) -> "GenerateResult":
        return GenerateResult(
            tokens=None if self.tokens is None else to_host(self.tokens),
            sampled=None if self.sampled is None else self.sampled.to_host(),
            scored=None if self.scored is None else self.scored.to_host(),
        )

    def to_output(self, step: int) -> GenerateOutput:
        return GenerateOutput(
            step,
            tokens=b"" if self.tokens is None else to_bytes(self.tokens),
            sampled=None if self.sampled is None else self.sampled.to_message(),
            scored=None if self.scored is None else self.scored.to_message(),
        )


class GenerateHead:
    """Samples the rows that request it and scores the prompt tokens that have a target."""

    def __init__(self, model: StageModel, slots: SlotTable, sampling: SamplingTable) -> None:
        self._model = model
        self._slots = slots
        self._sampling = sampling

    def __call__(
        self, requested: RequestedOutputs, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> GenerateResult:
        """Queue the work on a step's final hidden states, as `forward` leaves them. `mask` is given
        where the step has rows with a grammar."""
        sampling, scoring = requested.sampling, requested.scoring
        scored = self._score(scoring, hidden) if scoring else None
        if sampling is None:
            return GenerateResult(scored=scored)
        logits = self._logits(requested.last_states(hidden))
        tokens = sample(logits, sampling.rows, self._sampling.counts, mask)
        self._slots.store_last_tokens(sampling.device_slots, tokens)
        reported = sampling.width >= 0
        return GenerateResult(
            tokens=tokens,
            sampled=log_probabilities(logits, tokens, sampling.width) if reported else None,
            scored=scored,
        )

    def warm_up(self, hidden: torch.Tensor) -> None:
        """Compute logits of up to WARM_LM_HEAD_ROWS rows, for each of which a GPU may have another
        kernel (graphs do not contain the LM head), and sample in every way. Overwrites slot 0.

        hidden  [1, hidden_size]
        """
        for rows in range(2, WARM_LM_HEAD_ROWS + 1):
            self._logits(hidden.expand(rows, -1).contiguous())
        warm_up_sampling(self._logits(hidden), self._sampling)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, V]: float32 on the CPU, elsewhere in the model's dtype."""
        logits = self._model.compute_logits(hidden)
        return logits.float() if logits.device.type == "cpu" else logits

    def _score(self, scoring: ScoringInput, hidden: torch.Tensor) -> TokenLogprobs:
        parts: list[TokenLogprobs] = []
        token_ranks: list[torch.Tensor] = []
        for start in range(0, len(scoring.positions), SCORED_AT_ONCE):
            part = slice(start, start + SCORED_AT_ONCE)
            logits = self._logits(hidden[scoring.positions[part]])
            targets = scoring.targets[part]
            parts.append(log_probabilities(logits, targets, scoring.width))
            token_ranks.append(ranks(logits, targets))
        return TokenLogprobs(
            chosen=torch.cat([part.chosen for part in parts]),
            top_ids=torch.cat([part.top_ids for part in parts]),
            top=torch.cat([part.top for part in parts]),
            ranks=torch.cat(token_ranks),
        )
