"""Every way to sample, once: a kernel that is compiled on a GPU later would stall every request."""

from itertools import product

import numpy as np
import torch

from workers.contract.messages import SlotInit
from workers.sampling.adjustments import TokenMask
from workers.sampling.logprobs import log_probabilities
from workers.sampling.parameters import SamplingTable
from workers.sampling.sampler import sample

_GREEDY, _PLAIN, _TRUNCATED = (0.0, 1.0), (1.0, 1.0), (1.0, 0.9)
"""(temperature, top_p)"""


def rehearse(logits: torch.Tensor, table: SamplingTable) -> None:
    """Sample logits [1, V] of the model's dtype in every combination that launches other kernels.

    Overwrites slot 0 of the table.
    """
    words = torch.full((1, -(-logits.shape[1] // 32)), -1, dtype=torch.int32, device=logits.device)
    everything = TokenMask(np.zeros(1, np.int32), words)
    slots, contexts = np.zeros(1, np.int32), np.ones(1, np.int32)
    kinds = product((_GREEDY, _PLAIN, _TRUNCATED), (False, True), (False, True), (None, everything))
    for (temperature, top_p), biased, penalised, mask in kinds:
        init = SlotInit(
            slot=0,
            prompt_len=1,
            temperature=temperature,
            top_k=0,
            top_p=top_p,
            seed=0,
            presence_penalty=float(penalised),
            known=bytes(4) if penalised else b"",
            bias_ids=bytes(4) if biased else b"",
            bias_values=bytes(4) if biased else b"",
        )
        table.update([init])
        sample(logits, table.rows(slots, contexts), table.counts, mask)
    log_probabilities(logits, torch.zeros(1, dtype=torch.int32, device=logits.device), 1)
