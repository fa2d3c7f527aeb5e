"""Masks, biases and penalties, and the counts that they are by."""

from typing import Any

import numpy as np
import torch

from tests.workers.sampling.sampling_rows import allowing, filled_table, init
from workers.sampling import sampler
from workers.sampling.sampler import warm_up_sampling
from workers.sampling.sampling_table import TokenMask


def test_penalties_are_by_the_definitions_of_openai_and_of_ctrl() -> None:
    logits = torch.tensor([[2.0, 1.9, -0.5, -0.6, 1.8, 0.0]])

    def best(prompt: list[int], output: list[int], **penalties: Any) -> int:
        table, parameters = filled_table(6, [init(0, prompt, output, **penalties)])
        return int(sampler.sample(logits, parameters, table.counts))

    assert best([0], [5], presence_penalty=1.0) == 0  # the prompt does not count
    assert best([5], [0], presence_penalty=0.15) == 1
    assert best([5], [0, 0, 1], presence_penalty=0.15) == 0  # however often
    assert best([5], [0, 0, 1], frequency_penalty=0.15) == 4
    assert best([0], [1], repetition_penalty=1.2) == 4  # both are seen
    assert best([0, 1, 4, 5], [], repetition_penalty=1e-3) == 0  # a reward
    assert best([0, 1, 4], [5, 3], repetition_penalty=1e9) == 0  # 2e-9, before 0
    assert best([5], [0], presence_penalty=-1.0, frequency_penalty=1.5) == 1


def test_sampled_tokens_count_at_once() -> None:
    """Each step sees the tokens of the step before it, and of its own slot alone."""
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).expand(3, -1)
    inits = [init(0, [3], presence_penalty=1.5), init(1, [3]), init(2, [3], frequency_penalty=0.7)]
    table, parameters = filled_table(4, inits)
    steps = [sampler.sample(logits, parameters, table.counts).tolist() for _ in range(6)]
    #       4, 3 | 2.5, 3 | 2.5, 1.5, 2           4 | 3.3 | 2.6, 3 | 2.6, 2.3 | 1.9, 2.3
    assert [row[0] for row in steps] == [0, 1, 0, 0, 0, 0]
    assert [row[1] for row in steps] == [0] * 6
    assert [row[2] for row in steps] == [0, 0, 1, 0, 1, 2]
    table.update([init(0, [0], [1], presence_penalty=1.5)])
    assert sampler.sample(logits, parameters, table.counts)[0] == 0


def test_a_request_that_comes_back_is_penalised_as_if_it_had_stayed() -> None:
    logits = torch.randn(12, 50, generator=torch.Generator().manual_seed(6))
    penalties: dict[str, Any] = {
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.3,
    }
    table, parameters = filled_table(50, [init(0, [7, 8, 7], **penalties)])
    seen = [int(sampler.sample(step[None], parameters, table.counts)) for step in logits]
    table.update([init(0, [7, 8, 7], seen[:6], **penalties)])
    again = [int(sampler.sample(step[None], parameters, table.counts)) for step in logits[6:]]
    assert again == seen[6:]
    assert len(set(seen)) > 3


def test_biases_come_before_penalties_and_masks_before_both() -> None:
    logits = torch.tensor([[1.0, 0.5, 0.0, -1.0]]).expand(5, -1)
    inits = [
        init(0, [0], bias={3: 2.5}),
        init(1, [0], bias={0: -100.0, 1: -100.0}),
        init(2, [3], bias={3: 2.5}, repetition_penalty=2.0),  # (-1 + 2.5) / 2, not -1 * 2 + 2.5
        init(3, [0], bias={3: 100.0}),
        init(4, [0]),
    ]
    table, parameters = filled_table(4, inits)
    assert sampler.sample(logits, parameters, table.counts).tolist() == [3, 2, 0, 3, 0]
    # By now row 2 has seen token 0, too.
    mask = TokenMask(np.array([3, 4], np.int32), lambda: allowing(4, [[1, 2], [2, 3]]))
    assert sampler.sample(logits, parameters, table.counts, mask).tolist() == [3, 2, 3, 1, 2]
    nothing = TokenMask(np.array([4], np.int32), lambda: allowing(4, [[]]))
    assert sampler.sample(logits, parameters, table.counts, nothing).tolist() == [3, 2, 3, 3, -1]


def test_barred_tokens_are_barred_until_enough_have_been_sampled() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).expand(5, -1)
    inits = [
        init(0, [3], barred=[0, 1], min_tokens=2),
        init(1, [3], bias={0: 100.0, 3: 9.0}, barred=[0], min_tokens=1),
        init(2, [3], barred=[0, 3]),
        init(3, [3], bias={0: -9.0}, presence_penalty=0.5, barred=[1], min_tokens=9),
        init(4, [3]),
    ]
    table, _ = filled_table(4, inits)
    slots = np.arange(5, dtype=np.int32)

    def best(sampled: int) -> list[int]:
        parameters = table.rows(slots, np.full(5, 1 + sampled, np.int32))
        return sampler.sample(logits, parameters, table.counts).tolist()

    assert best(0) == [2, 3, 0, 2, 0]
    assert best(1) == [2, 0, 0, 2, 0]
    assert best(2) == [0, 0, 0, 2, 0]
    assert best(9) == [0, 0, 0, 1, 0]
    table.update([init(0, [3])])
    assert best(0)[0] == 0


def test_logits_are_left_as_they_are() -> None:
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(7))
    before = logits.clone()
    table, parameters = filled_table(40, [init(0, [1, 2], repetition_penalty=3.0), init(1, [5])])
    mask = TokenMask(np.array([1], np.int32), lambda: allowing(40, [[3, 39]]))
    assert sampler.sample(logits, parameters, table.counts, mask).tolist()[1] in {3, 39}
    assert torch.equal(logits, before)


def test_clearing_removes_what_warm_up_leaves() -> None:
    table, parameters = filled_table(50, [init(0, [7], presence_penalty=5.0)])
    warm_up_sampling(torch.randn(1, 50, generator=torch.Generator().manual_seed(8)), table)
    assert table.counts.table.any()
    assert table.counts.table.nbytes == 2 * 50
    table.clear()
    assert not table.counts.table.any()
    assert not any(table.parameters.tobytes())
    again = table.rows(np.zeros(1, np.int32), np.ones(1, np.int32))
    assert again.adjustments() is None
    assert parameters.adjustments() is not None
