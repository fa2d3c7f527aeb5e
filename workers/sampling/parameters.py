"""How each slot's tokens are chosen, and the rows of a step that are."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from workers.contract.messages import SlotInit
from workers.sampling.adjustments import Adjustments, Bias
from workers.sampling.token_counts import TokenCounts
from workers.step.tensors import IntArray

FloatArray = npt.NDArray[np.float32]

SAMPLING_RECORD = np.dtype(
    [
        ("prompt_len", np.int32),
        ("temperature", np.float32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("seed", np.uint64),
        ("logprobs", np.int32),
        ("prompt_logprobs", np.int32),
        ("min_p", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("repetition_penalty", np.float32),
        ("penalised", np.int32),
        ("biased", np.int32),
        ("min_tokens", np.int32),
    ]
)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of S rows, [S] each; `index` counts a row's sampled tokens from 0.

    `adjustments` are those of the rows whose logits change before they are sampled, if any do.
    """

    temperature: FloatArray
    top_k: IntArray
    top_p: FloatArray
    min_p: FloatArray
    seed: npt.NDArray[np.uint64]
    index: IntArray
    adjustments: Adjustments | None = None

    def take(self, rows: npt.NDArray[np.intp]) -> "SamplingRows":
        """The parameters of some of the rows, without adjustments."""
        return SamplingRows(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            seed=self.seed[rows],
            index=self.index[rows],
        )


class SamplingTable:
    """What the last stage remembers of each slot to sample it.

    parameters  SAMPLING_RECORD[max_slots]
    counts      the tokens that penalised slots have seen
    """

    parameters: npt.NDArray[np.void]
    counts: TokenCounts

    def __init__(self, max_slots: int, vocab_size: int, device: torch.device) -> None:
        self.parameters = np.zeros(max_slots, SAMPLING_RECORD)
        self.counts = TokenCounts(max_slots, vocab_size, device)
        self._biases: dict[int, Bias] = {}
        self._early_biases: dict[int, Bias] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return self.counts.nbytes

    def update(self, inits: Iterable[SlotInit]) -> None:
        """Slots change hands."""
        for init in inits:
            self._set_biases(init)
            if init.known:
                self.counts.begin(init.slot, np.frombuffer(init.known, np.int32), init.prompt_len)
            self.parameters[init.slot] = (
                init.prompt_len,
                init.temperature,
                init.top_k,
                init.top_p,
                init.seed,
                init.logprobs,
                init.prompt_logprobs,
                init.min_p,
                init.presence_penalty,
                init.frequency_penalty,
                init.repetition_penalty,
                bool(init.known),
                bool(init.bias_ids),
                init.min_tokens if init.barred_ids else 0,
            )

    def rows(self, slots: IntArray, contexts: IntArray) -> SamplingRows:
        """The rows of `slots` [S], which hold `contexts` [S] tokens before the one to sample."""
        rows = self.parameters[slots]
        index = contexts - rows["prompt_len"]
        return SamplingRows(
            temperature=rows["temperature"],
            top_k=rows["top_k"],
            top_p=rows["top_p"],
            min_p=rows["min_p"],
            seed=rows["seed"],
            index=index,
            adjustments=self._adjustments(slots, rows, early=rows["min_tokens"] > index),
        )

    def sampled_width(self, slots: IntArray) -> int:
        """The most alternatives that any of `slots` reports beside a sampled token; -1: none wants
        log-probabilities."""
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
        """Keep the biases of a slot: those for good, and those while tokens are barred."""
        self._biases.pop(init.slot, None)
        self._early_biases.pop(init.slot, None)
        ids = np.frombuffer(init.bias_ids, np.int32)
        values = np.frombuffer(init.bias_values, np.float32)
        if len(ids):
            self._biases[init.slot] = Bias(ids, values)
        if init.barred_ids:
            barred = np.frombuffer(init.barred_ids, np.int32)
            others = ~np.isin(ids, barred)
            bars = np.full(len(barred), -np.inf, np.float32)
            self._early_biases[init.slot] = Bias(
                np.concatenate([barred, ids[others]]), np.concatenate([bars, values[others]])
            )

    def _adjustments(
        self, slots: IntArray, rows: npt.NDArray[np.void], early: npt.NDArray[np.bool_]
    ) -> Adjustments | None:
        """`early` [S] is true where tokens are still barred."""
        adjusted = np.flatnonzero(rows["penalised"] | rows["biased"] | early)
        if not len(adjusted):
            return None
        those = rows[adjusted]
        biases: dict[int, Bias] = {}
        for place, row in enumerate(adjusted.tolist()):
            kept = self._early_biases if early[row] else self._biases
            if (bias := kept.get(int(slots[row]))) is not None:
                biases[place] = bias
        return Adjustments(
            rows=adjusted.astype(np.int32),
            slots=np.where(those["penalised"], slots[adjusted], np.int32(-1)),
            presence=those["presence_penalty"],
            frequency=those["frequency_penalty"],
            repetition=those["repetition_penalty"],
            biases=biases,
        )
