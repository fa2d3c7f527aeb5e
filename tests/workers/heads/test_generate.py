"""The warm-up of a head before any request."""

from types import SimpleNamespace
from typing import Any

import torch

from workers.device.tuning import WARM_LM_HEAD_ROWS
from workers.heads.decoder_head import GenerateHead
from workers.sampling.sampling_table import SamplingTable
from workers.step.slot_table import SlotTable

VOCABULARY, SIZE = 50, 8


def test_warm_up_computes_logits_of_every_small_number_of_rows() -> None:
    cpu, asked = torch.device("cpu"), list[int]()

    def compute_logits(hidden: torch.Tensor) -> torch.Tensor:
        assert hidden.is_contiguous()
        asked.append(len(hidden))
        return torch.zeros(len(hidden), VOCABULARY)

    model: Any = SimpleNamespace(compute_logits=compute_logits)
    slots = SlotTable(max_running=2, max_blocks=1, block_size=1, scratch_block=0, device=cpu)
    head = GenerateHead(model, slots, SamplingTable(2, VOCABULARY, cpu))
    head.warm_up(torch.zeros(1, SIZE))
    assert sorted(asked) == list(range(1, WARM_LM_HEAD_ROWS + 1))
