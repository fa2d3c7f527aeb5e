"""Where a captured step finds its tokens: device memory that stays where it is."""

import numpy as np
import numpy.typing as npt
import torch

from workers.slots import SlotTable
from workers.step_tensors import IntArray, StepTensors
from workers.transfer import stage

_BYTES = 32
"""Of each token: tokens, positions and slot_mapping int64, slots and context_lens int32."""


class StaticInputs:
    """The inputs of `size` tokens, views of one buffer, so that a step arrives in one copy.

    tokens, positions, slot_mapping  int64[size]; a token of -1 is the last one of its slot
    slots, context_lens              int32[size]; a token's context ends with itself

    resolved  int64[size]: the tokens, those of -1 looked up; part of the captured step

    What a step does not fill belongs to nobody's slot, and its keys and values go to a place in the
    KV cache that nobody reads.
    """

    def __init__(self, size: int, slots: SlotTable, scratch_place: int) -> None:
        """`scratch_place` is that place: block * block_size."""
        self.size = size
        self._table = slots
        self._scratch_place = scratch_place
        device = slots.last_tokens.device
        self._buffer = torch.zeros(size * _BYTES, dtype=torch.uint8, device=device)
        wide = self._buffer[: size * 24].view(torch.int64).view(3, size)
        narrow = self._buffer[size * 24 :].view(torch.int32).view(2, size)
        self.tokens, self.positions, self.slot_mapping = wide
        self.slots, self.context_lens = narrow
        self.resolved = torch.zeros_like(self.tokens)
        nothing = np.zeros(0, np.int32)
        self.load(nothing, nothing, nothing, nothing)

    def load(
        self,
        tokens: IntArray,
        positions: npt.NDArray[np.integer],
        slot_mapping: npt.NDArray[np.integer],
        slots: IntArray,
    ) -> None:
        """Queue the copy of a step's T <= size tokens, [T] each."""
        count = len(tokens)
        wide = np.zeros((3, self.size), np.int64)
        wide[0, :count], wide[1, :count] = tokens, positions
        wide[2] = self._scratch_place
        wide[2, :count] = slot_mapping
        narrow = np.empty((2, self.size), np.int32)
        narrow[0] = self._table.padding_slot
        narrow[0, :count] = slots
        narrow[1] = wide[1] + 1
        self._buffer.copy_(stage([wide, narrow]), non_blocking=True)

    def resolve_tokens(self) -> None:
        """Fill `resolved`. To be captured."""
        last = self._table.last_tokens.index_select(0, self.slots)
        torch.where(self.tokens < 0, last, self.tokens, out=self.resolved)

    def as_decode_step(self) -> StepTensors:
        """A step whose rows are these tokens, once resolved, one each. Its host-side lengths are
        made up: whoever is captured looks at the device's."""
        return StepTensors(
            tokens=self.resolved,
            positions=self.positions,
            token_types=None,
            slot_mapping=self.slot_mapping,
            block_tables=self._table.device_tables,
            slots=self.slots,
            query_starts=torch.arange(self.size + 1, dtype=torch.int32, device=self.slots.device),
            context_lens=self.context_lens,
            query_lens=np.ones(self.size, np.int32),
            contexts=np.ones(self.size, np.int32),
        )
