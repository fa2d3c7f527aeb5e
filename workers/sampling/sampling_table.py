"""How each slot's tokens are sampled, and the rows of a step that are."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import astuple, fields

from workers.contract.messages import SlotInit
from workers.contract.token_sampling import TokenSampling
from workers.sampling.adjustments import Adjustments, Bias, TokenMask
from workers.sampling.token_counts import TokenCounts
from workers.sampling.uniforms import uniforms
from workers.step.rows import IntArray

FloatArray = npt.NDArray[np.float32]

_ELEMENT = {float: np.float32, int: np.int32}

SAMPLING_RECORD = np.dtype(
    [
        *((each.name, _ELEMENT[each.type]) for each in fields(TokenSampling)),
        ("prompt_len", np.int32),
        ("seed", np.uint64),
        ("logprobs", np.int32),
        ("prompt_logprobs", np.int32),
        ("penalised", np.int32),
        ("biased", np.int32),
        ("min_tokens", np.int32),
    ]
)
"""One slot: the fields of `TokenSampling`, then those of its `SlotInit` that sampling reads."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How S rows of a step are sampled.

    slots        int32[S]
    parameters   SAMPLING_RECORD[S]
    index        int32[S], how many tokens of the row have been sampled before
    biases       by row, of those that have any
    """

    slots: IntArray
    parameters: npt.NDArray[np.void]
    index: IntArray
    biases: dict[int, Bias] = field(default_factory=dict[int, Bias])

    def subset(self, rows: npt.NDArray[np.intp]) -> "SamplingRows":
        """Some of the rows, without what changes their logits."""
        return SamplingRows(self.slots[rows], self.parameters[rows], self.index[rows])

    def adjustments(self, mask: TokenMask | None = None) -> Adjustments | None:
        """The changes to rows' logits before they are sampled; None if no row has any."""
        changed = self.parameters["penalised"] > 0
        changed[list(self.biases)] = True
        if mask is not None:
            changed[mask.rows] = True
        rows = np.flatnonzero(changed).astype(np.int32)
        if not len(rows):
            return None
        own = self.parameters[rows]
        places = {row: index for index, row in enumerate(rows.tolist())}
        mask_rows = None
        if mask is not None:
            mask_rows = np.full(len(rows), -1, np.int32)
            mask_rows[np.searchsorted(rows, mask.rows)] = np.arange(len(mask.rows))
        return Adjustments(
            rows=rows,
            slots=np.where(own["penalised"], self.slots[rows], np.int32(-1)),
            presence=own["presence_penalty"],
            frequency=own["frequency_penalty"],
            repetition=own["repetition_penalty"],
            biases={places[row]: bias for row, bias in self.biases.items()},
            mask_rows=mask_rows,
        )

    def uniforms(self) -> FloatArray:
        """The number that each row's token is drawn by, float32[S] in [0, 1)."""
        return uniforms(self.parameters["seed"], self.index)


class SamplingTable:
    """What the last stage remembers of each slot to sample it.

    parameters  SAMPLING_RECORD[max_running], on the host
    counts      the tokens that penalised slots have seen, on the device
    """

    parameters: npt.NDArray[np.void]
    counts: TokenCounts

    def __init__(self, max_running: int, vocab_size: int, device: torch.device) -> None:
        self.parameters = np.zeros(max_running, SAMPLING_RECORD)
        self.counts = TokenCounts(max_running, vocab_size, device)
        self._biases: dict[int, Bias] = {}
        self._early_biases: dict[int, Bias] = {}

    def update(self, inits: Iterable[SlotInit]) -> None:
        """Requests move into slots."""
        for init in inits:
            self._set_biases(init)
            if init.known_tokens:
                known = np.frombuffer(init.known_tokens, np.int32)
                self.counts.begin(init.slot, known, init.prompt_len)
            self.parameters[init.slot] = (
                *astuple(init.sampling),
                init.prompt_len,
                init.seed,
                init.logprobs,
                init.prompt_logprobs,
                bool(init.known_tokens),
                bool(init.bias.ids),
                init.barred.min_tokens if init.barred.ids else 0,
            )

    def rows(self, slots: IntArray, contexts: IntArray) -> SamplingRows:
        """The rows of `slots` [S], which hold `contexts` [S] tokens before the one to sample."""
        parameters = self.parameters[slots]
        index = contexts - parameters["prompt_len"]
        biases: dict[int, Bias] = {}
        barred = parameters["min_tokens"] > index
        for row in np.flatnonzero(parameters["biased"] | barred).tolist():
            kept = self._early_biases if barred[row] else self._biases
            biases[row] = kept[int(slots[row])]
        return SamplingRows(slots, parameters, index, biases)

    def sampled_width(self, slots: IntArray) -> int:
        """The most alternatives that any of `slots` reports beside a sampled token; -1 if none
        reports log-probabilities."""
        return int(self.parameters["logprobs"][slots].max())

    def scored_width(self, slots: IntArray) -> int:
        """The most alternatives that any of `slots` reports beside a prompt token."""
        return max(int(self.parameters["prompt_logprobs"][slots].max()), 0)

    def clear(self) -> None:
        """Forget everything."""
        self.parameters.fill(0)
        self.counts.clear()
        self._biases.clear()
        self._early_biases.clear()

    def _set_biases(self, init: SlotInit) -> None:
        """Keep the biases of a slot: the request's own, and with them, until `min_tokens` have been
        sampled, -inf for the tokens that are barred."""
        self._biases.pop(init.slot, None)
        self._early_biases.pop(init.slot, None)
        ids = np.frombuffer(init.bias.ids, np.int32)
        values = np.frombuffer(init.bias.values, np.float32)
        if len(ids):
            self._biases[init.slot] = Bias(ids, values)
        if init.barred.ids:
            barred = np.frombuffer(init.barred.ids, np.int32)
            others = ~np.isin(ids, barred)
            bars = np.full(len(barred), -np.inf, np.float32)
            self._early_biases[init.slot] = Bias(
                np.concatenate([barred, ids[others]]), np.concatenate([bars, values[others]])
            )
