"""The blocks that running requests are expected to take before others end, and give back theirs."""

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from engine_core.loop.jobs import JobKind
from engine_core.schedulers.kv_cache import KVCacheManager
from engine_core.schedulers.request import Request

_NEXT_OUTPUT = 256
"""Tokens that are expected of an output, outside of the batch band, if none was longer."""

_REMEMBERED = 1024

_ENDS = 32
"""At how many ends the need is known: there may be one for each of a thousand requests."""


class OutputLengths:
    """The tokens of the last outputs that came to their own end."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=_REMEMBERED)
        self._sorted = np.zeros(0)
        self._sums = np.zeros(1)  # of the N longest

    def add(self, tokens: int) -> None:
        self._lengths.append(tokens)
        self._sorted = np.zeros(0)

    def mean(self, longer_than: int = -1) -> float | None:
        """The mean of those longer than that. None if there is none."""
        if not len(self._sorted) and self._lengths:
            self._sorted = np.sort(np.array(self._lengths))
            self._sums = np.cumsum(self._sorted[::-1])
        count = len(self._sorted) - int(np.searchsorted(self._sorted, longer_than, "right"))
        return float(self._sums[count - 1]) / count if count else None


class ExpectedGrowth:
    """The rule by which requests begin: the cache is to hold all that run whenever one ends.

    What gives way to the growth of others is computed again. An output is expected to be as long as
    it may be where no token ends it, else as those before. As all grow alike, the need is greatest
    when one ends (Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", 2025).
    """

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self.batch_outputs, self._other_outputs = OutputLengths(), OutputLengths()
        layout = kv.layout
        held = [layout.blocks_held(own * layout.block_size) for own in range(layout.max_blocks + 1)]
        self._blocks_by_entries = np.array(held)
        # By request that runs: its tokens at its end, blocks that others held when it began, and
        # those that it still lacks.
        self._tokens: dict[Request, int] = {}
        self._shared: dict[Request, int] = {}
        self._lacking: dict[Request, int] = {}
        self._growth = 0  # the sum of these

    def has_room(self, request: Request, shared: int) -> bool:
        """Whether a request may begin as soon as its known tokens find blocks, beside `shared` ones
        that others hold."""
        if not self._tokens:
            return True
        tokens = self._expected_tokens(request)
        own = self._kv.layout.blocks_held(tokens) - shared
        if self._growth + own <= self._kv.num_free:
            return True
        return self._most_needed(request, tokens, shared) <= self._kv.num_free

    def _most_needed(self, request: Request, tokens: int, shared: int) -> int:
        """The most blocks more that are held when any of those that run ends, or this request."""
        count = len(self._tokens) + 1
        known = np.array([len(each.tokens) for each in (*self._tokens, request)])
        left = np.fromiter((*self._tokens.values(), tokens), np.int64, count) - known
        of_others = np.fromiter((*self._shared.values(), shared), np.int64, count)
        held = self._blocks(known)
        held[-1] = of_others[-1]  # it holds nothing of its own yet
        ends = np.unique(np.maximum(left, 0))
        ends = ends[:: -(-len(ends) // _ENDS)][:, None]
        grown = self._blocks(known + ends) - held
        return int(np.where(left >= ends, grown, of_others - held).sum(axis=1).max())

    def _blocks(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Blocks that sequences of so many tokens hold, or of the most that one may have."""
        layout = self._kv.layout
        entries = np.minimum(-(-tokens // layout.block_size), layout.max_blocks)
        return self._blocks_by_entries[entries]

    def begun(self, request: Request, shared: int) -> None:
        """Note that a request runs, with the blocks that it has claimed."""
        self._shared[request] = shared
        self.grown(request)

    def grown(self, request: Request) -> None:
        self._tokens[request] = tokens = self._expected_tokens(request)
        lacking = self._kv.lacking(request.held, self._kv.blocks_for(tokens))
        self._growth += lacking - self._lacking.get(request, 0)
        self._lacking[request] = lacking

    def left(self, request: Request) -> None:
        del self._tokens[request], self._shared[request]
        self._growth -= self._lacking.pop(request)

    def finished(self, request: Request) -> None:
        """Learn how long outputs are from a request that has come to its own end."""
        self._outputs_like(request).add(len(request.tokens) - request.prompt_len)

    def _expected_tokens(self, request: Request) -> int:
        """A request's tokens at its end, as far as these are known."""
        known, most = len(request.tokens), request.max_len
        if not request.stops:
            return most
        if mean := self._outputs_like(request).mean(known - request.prompt_len):
            return min(most, request.prompt_len + math.ceil(mean))
        return most if request.kind is JobKind.BATCH else min(most, known + _NEXT_OUTPUT)

    def _outputs_like(self, request: Request) -> OutputLengths:
        return self.batch_outputs if request.kind is JobKind.BATCH else self._other_outputs
