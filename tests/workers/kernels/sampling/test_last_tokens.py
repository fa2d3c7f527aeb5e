"""Newest tokens by slot: kept, and looked up."""

import pytest
import torch

from workers.kernels.sampling.last_tokens import keep, look_up

SLOTS = 300


@pytest.mark.parametrize("count", [1, 128, 200])
def test_what_is_kept_is_found(count: int, device: torch.device) -> None:
    last_tokens = torch.arange(SLOTS, device=device)
    order = torch.randperm(SLOTS)[:count]
    # Views at any offset, as after a copy of several arrays at once.
    slots = torch.cat((torch.zeros(1, dtype=torch.int64), order)).to(device, torch.int32)[1:]
    tokens = torch.randint(-1, 1 << 17, (count + 1,), dtype=torch.int32, device=device)[1:]
    exact = last_tokens.clone()
    exact[slots.long()] = tokens.clamp(min=0).long()
    keep(last_tokens, slots, tokens)
    assert torch.equal(last_tokens, exact)

    given = torch.randint(-1, 2, (count,), device=device)
    found = torch.full_like(given, 7)
    look_up(last_tokens, slots, given, found)
    assert torch.equal(found, torch.where(given < 0, exact[slots.long()], given))
    look_up(last_tokens, slots, given, given)
    assert torch.equal(given, found)


def test_a_given_token_is_not_looked_up(device: torch.device) -> None:
    """The slot of a row with a token is not read: nothing may have been written there."""
    last_tokens = torch.zeros(2, dtype=torch.int64, device=device)
    nowhere = torch.tensor([1 << 28, 1], dtype=torch.int32, device=device)
    out = torch.zeros(2, dtype=torch.int64, device=device)
    look_up(last_tokens, nowhere, torch.tensor([5, -1], device=device), out)
    assert out.tolist() == [5, 0]
