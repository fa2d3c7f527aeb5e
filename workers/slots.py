"""What a stage remembers of each slot between steps, so that messages carry only what changed."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from workers.messages import SlotInit
from workers.step_tensors import IntArray
from workers.transfer import on_device

SLOT_RECORD = np.dtype(
    [
        ("prompt_len", np.int32),
        ("temperature", np.float32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("seed", np.uint64),
        ("logprobs", np.int32),
        ("prompt_logprobs", np.int32),
    ]
)


class SlotTable:
    """Block tables, sampling parameters and last sampled token of every slot.

    block_tables  int32[max_slots, max_blocks]
    parameters    SLOT_RECORD[max_slots]
    last_tokens   int64[max_slots] on the device; meaningful on the first stage only
    """

    block_tables: IntArray
    parameters: npt.NDArray[np.void]
    last_tokens: torch.Tensor

    def __init__(self, max_slots: int, max_blocks: int, device: torch.device) -> None:
        self.block_tables = np.zeros((max_slots, max_blocks), np.int32)
        self.parameters = np.zeros(max_slots, SLOT_RECORD)
        self.last_tokens = torch.zeros(max_slots, dtype=torch.int64, device=device)

    def update(self, inits: Iterable[SlotInit], block_updates: bytes) -> None:
        """Apply a step's news: slots that change hands first, then blocks that slots gained."""
        for init in inits:
            self.parameters[init.slot] = (
                init.prompt_len,
                init.temperature,
                init.top_k,
                init.top_p,
                init.seed,
                init.logprobs,
                init.prompt_logprobs,
            )
        if block_updates:
            updates = np.frombuffer(block_updates, np.int32).reshape(-1, 3)
            self.block_tables[updates[:, 0], updates[:, 1]] = updates[:, 2]

    def store_last_tokens(self, slots: IntArray, tokens: torch.Tensor) -> None:
        """Keep each slot's newest token; `tokens` [S] on any device.

        A failed row's -1 becomes 0: a step submitted ahead may still read it, and must not index
        the embedding with it; the engine drops what comes of that row.
        """
        device = self.last_tokens.device
        self.last_tokens[on_device(slots, device)] = tokens.to(device, torch.int64).clamp(min=0)

    def clear(self) -> None:
        """Forget everything."""
        self.block_tables.fill(0)
        self.parameters.fill(0)
        self.last_tokens.zero_()
