"""How each slot's tokens are sampled: the last stage's tables, and the rows of a step."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import astuple, fields

from workers.contract.messages import SlotInit
from workers.contract.token_sampling import TokenSampling
from workers.device.transfer import on_device
from workers.step.rows import IntArray, LongArray

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
        ("read", np.int32),
    ]
)
"""One slot: the fields of `TokenSampling`, then those of its `SlotInit` that sampling reads."""

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)

_ID_BYTES = 4
_IN_PROMPT = 1
_ONE_SAMPLED = 2
_FULL = np.iinfo(np.int16).max - 1
"""Counting stops after a token was sampled 16,383 times, which no penalty notices."""


class TokenCounts:
    """Dense counts, int16[max_running, V]: twice how often a token was sampled, plus 1 if the
    prompt holds it.

    Each step counts its own tokens on the device, in stream order: an ahead step must see that of
    the step before. CUDA allocates the table within the memory that is measured at start, the CPU
    with the first row with a penalty.
    """

    def __init__(self, max_running: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (max_running, vocab_size)
        self._device = device
        if device.type == "cuda":
            _ = self.table

    @cached_property
    def table(self) -> torch.Tensor:
        return torch.zeros(self._shape, dtype=torch.int16, device=self._device)

    def begin(self, slot: int, known: IntArray, prompt_len: int) -> None:
        """A request moves into `slot` with `known` tokens, the first `prompt_len` its prompt."""
        counts = np.bincount(known[prompt_len:], minlength=self._shape[1]) * _ONE_SAMPLED
        row = np.minimum(counts, _FULL).astype(np.int16)
        row[known[:prompt_len]] |= _IN_PROMPT
        self.table[slot] = on_device(row, self._device)

    def add(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Count one token [A] for each of A different slots [A] (int64 both). A failed row's -1
        counts as 0."""
        table = self.table
        cells = (slots, tokens.clamp(min=0))
        counts = table[cells]
        table[cells] = torch.where(counts < _FULL, counts + _ONE_SAMPLED, counts)

    def clear(self) -> None:
        if "table" in vars(self):
            self.table.zero_()


class Bias(NamedTuple):
    """`values` float32[N] to add to the logits of N different tokens `ids` int32[N]: `logit_bias`,
    and -inf for tokens that are barred.

    The host sends them with each step. OpenAI allows 300 entries a request, 3.6 KB; a dense row
    would take half a megabyte of the device for every slot.
    """

    ids: IntArray
    values: FloatArray


class TokenMask(NamedTuple):
    """The tokens that grammars allow in M of a step's rows.

    rows   int32[M], which of the step's S rows
    words  Waits for int32[M, ceil(V / 32)] on the logits' device: called once, when nothing is left
           to be done without. Bit i % 32 of word i // 32 is 1 where token i is allowed.
    """

    rows: IntArray
    words: Callable[[], torch.Tensor]

    @classmethod
    def to_come(
        cls, masked: bytes, bits: Callable[[], bytes], device: torch.device
    ) -> "TokenMask | None":
        """The mask of `DecodeStep.masked`, if any row is, and of `StepMask.bits`."""
        rows = np.flatnonzero(np.frombuffer(masked, np.uint8)).astype(np.int32)

        def words() -> torch.Tensor:
            read = np.frombuffer(bytearray(bits()), np.int32)
            return on_device(read.reshape(len(rows), -1), device)

        return cls(rows, words) if len(rows) else None


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Changes to the logits of A rows of a step: masks, biases and penalties, in this order. The
    log-probabilities that are reported are those before.

    rows       int32[A], which of the step's S rows, ascending
    slots      int32[A], the slot whose counts a row's penalties read. -1 without penalties.
    penalties  float32[3, A]: OpenAI's presence and frequency penalties, and the repetition penalty
               of prompt and output (Keskar et al. 2019, arXiv:1909.05858)
    biases     int32[N], which of the A rows, and N tokens and values as in `Bias`. Empty without.
    mask_rows  int32[A], a row's index among the M of a `TokenMask`, -1 for none. None without a
               mask.
    """

    rows: IntArray
    slots: IntArray
    penalties: FloatArray
    biases: tuple[IntArray, IntArray, FloatArray] | tuple[()]
    mask_rows: IntArray | None

    @property
    def counted(self) -> npt.NDArray[np.intp]:
        """Which of the A rows have their tokens counted."""
        return np.flatnonzero(self.slots >= 0)


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
        """Some of the rows, without biases."""
        return SamplingRows(self.slots[rows], self.parameters[rows], self.index[rows])

    def adjustments(self, mask: TokenMask | None = None) -> Adjustments | None:
        """The changes to rows' logits. None if no row has any."""
        changed = self.parameters["penalised"] > 0
        changed[list(self.biases)] = True
        if mask is not None:
            changed[mask.rows] = True
        rows = np.flatnonzero(changed).astype(np.int32)
        if not len(rows):
            return None
        own = self.parameters[rows]
        penalties = [own[f"{kind}_penalty"] for kind in ("presence", "frequency", "repetition")]
        mask_rows = None
        if mask is not None:
            mask_rows = np.full(len(rows), -1, np.int32)
            mask_rows[np.searchsorted(rows, mask.rows)] = np.arange(len(mask.rows))
        return Adjustments(
            rows=rows,
            slots=np.where(own["penalised"], self.slots[rows], np.int32(-1)),
            penalties=np.stack(penalties),
            biases=self._biases_of(rows),
            mask_rows=mask_rows,
        )

    def _biases_of(self, rows: IntArray) -> tuple[IntArray, IntArray, FloatArray] | tuple[()]:
        """All biases one after another, by index among `rows`."""
        if not self.biases:
            return ()
        ids, values = zip(*self.biases.values(), strict=True)
        index = np.searchsorted(rows, list(self.biases)).astype(np.int32)
        return np.repeat(index, [*map(len, ids)]), np.concatenate(ids), np.concatenate(values)

    def uniforms(self) -> FloatArray:
        """The number that each row's token is drawn by, float32[S] in [0, 1)."""
        return uniforms(self.parameters["seed"], self.index)


class SamplingTable:
    """Sampling parameters of each slot, in the last stage.

    parameters  SAMPLING_RECORD[max_running], on the host
    counts      the tokens that penalised slots have seen, on the device
    """

    def __init__(self, max_running: int, vocab_size: int, device: torch.device) -> None:
        self.parameters = np.zeros(max_running, SAMPLING_RECORD)
        self.counts = TokenCounts(max_running, vocab_size, device)
        self._biases: dict[int, tuple[Bias, Bias]] = {}
        self._read: dict[int, IntArray] = {}

    def update(self, inits: Iterable[SlotInit]) -> None:
        for init in inits:
            if init.bias.ids or init.barred.ids:
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
                len(init.read) // _ID_BYTES,
            )
            if init.read:
                self._read[init.slot] = np.frombuffer(init.read, np.int32)

    def rows(self, slots: IntArray, contexts: IntArray) -> SamplingRows:
        """The rows of `slots` [S], which hold `contexts` [S] tokens before the one to sample."""
        parameters = self.parameters[slots]
        index = contexts - parameters["prompt_len"]
        biases: dict[int, Bias] = {}
        barred = parameters["min_tokens"] > index
        for row in np.flatnonzero(parameters["biased"] | barred).tolist():
            own, early = self._biases[int(slots[row])]
            biases[row] = early if barred[row] else own
        return SamplingRows(slots, parameters, index, biases)

    def read_tokens(self, slots: IntArray) -> list[LongArray]:
        """The fields of `ReadTokens` for the rows of `slots` [S]. Empty if none of them reads."""
        counts = self.parameters["read"][slots]
        rows = np.flatnonzero(counts)
        if not len(rows):
            return []
        ids = np.concatenate([self._read[slot] for slot in slots[rows].tolist()])
        return [rows, np.repeat(np.arange(len(rows)), counts[rows]), ids.astype(np.int64)]

    def sampled_width(self, slots: IntArray) -> int:
        """The most alternatives that any of `slots` reports beside a sampled token. -1 if none
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
        self._read.clear()

    def _set_biases(self, init: SlotInit) -> None:
        """Keep a slot's own biases, and those until `min_tokens` have been sampled: with -inf for
        barred tokens."""
        ids, barred = (np.frombuffer(each.ids, np.int32) for each in (init.bias, init.barred))
        values = np.frombuffer(init.bias.values, np.float32)
        others, bars = ~np.isin(ids, barred), np.full(len(barred), -np.inf, np.float32)
        early = np.concatenate([barred, ids[others]]), np.concatenate([bars, values[others]])
        self._biases[init.slot] = Bias(ids, values), Bias(*early)


def uniforms(seed: npt.NDArray[np.uint64], index: IntArray) -> FloatArray:
    """Number `index` of each row's random stream, float32[S] in [0, 1): at most 1 - 2^-24.

    No other row, recomputation or number of stages changes it. The counter is SplitMix64's state
    (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). The seed is mixed
    first, so that neighbouring seeds share no stream.
    """
    counter = (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    bits = _mix(_mix(seed) + counter)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
