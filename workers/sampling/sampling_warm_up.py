"""Samples once in every way: a kernel that is compiled on a GPU later would stall every request."""

from itertools import product

import msgspec
import numpy as np
import torch

from workers.contract.messages import SlotInit
from workers.contract.token_sampling import GREEDY, TokenBias, TokenSampling
from workers.sampling.adjustments import TokenMask
from workers.sampling.logprobs import log_probabilities
from workers.sampling.sampler import sample
from workers.sampling.sampling_table import SamplingTable

_SAMPLINGS = (GREEDY, TokenSampling(), TokenSampling(top_p=0.9))


def warm_up_sampling(logits: torch.Tensor, table: SamplingTable) -> None:
    """Sample `logits` [1, V] of the model's dtype in every combination that launches other kernels.

    Overwrites slot 0 of `table`.
    """
    words = torch.full((1, -(-logits.shape[1] // 32)), -1, dtype=torch.int32, device=logits.device)
    everything = TokenMask(np.zeros(1, np.int32), words)
    slots, contexts = np.zeros(1, np.int32), np.ones(1, np.int32)
    kinds = product(_SAMPLINGS, (False, True), (False, True), (None, everything))
    for sampling, biased, penalised, mask in kinds:
        init = SlotInit(
            slot=0,
            prompt_len=1,
            seed=0,
            sampling=msgspec.structs.replace(sampling, presence_penalty=float(penalised)),
            known_tokens=bytes(4) if penalised else b"",
            bias=TokenBias(bytes(4), bytes(4)) if biased else TokenBias(),
        )
        table.update([init])
        sample(logits, table.rows(slots, contexts), table.counts, mask)
    log_probabilities(logits, torch.zeros(1, dtype=torch.int32, device=logits.device), 1)
