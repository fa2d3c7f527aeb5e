"""A decoder's steps: rows that fail, what is reported, and what warming up leaves."""

from pathlib import Path

import torch

from tests.workers.stages import NUM_BLOCKS, Stages, sampled_tokens
from tests.workers.step_maker import StepMaker

PROMPTS = [
    [3 + (7 * row + 5 * place) % 200 for place in range(n)] for row, n in enumerate((19, 1, 8, 33))
]


def test_a_failed_row_fails_alone_and_may_still_run_ahead(llama: Path) -> None:
    def run(*, poison: bool) -> list[list[int]]:
        stages = Stages(llama)
        maker = StepMaker(stages.block_size, NUM_BLOCKS)
        rows = [maker.admit(prompt, temperature=0.8, seed=1) for prompt in PROMPTS]
        reports = [stages.run(maker.step([(row, len(row.tokens)) for row in rows]))]
        if poison:
            cache = stages.runners[0].kv_cache
            cache.layers[1].values[rows[2].blocks[0]] = torch.nan
        reports += [stages.run(maker.step([(row, 1) for row in rows])) for _ in range(3)]
        return [sampled_tokens(report).tolist() for report in reports]

    for clean, poisoned in zip(run(poison=False)[1:], run(poison=True)[1:], strict=True):
        assert poisoned == [-1 if row == 2 else token for row, token in enumerate(clean)]


def test_log_probabilities_are_as_wide_as_the_widest_row(llama: Path) -> None:
    """A step that only prefills has none."""
    stages = Stages(llama)
    maker = StepMaker(stages.block_size, NUM_BLOCKS)
    widths = {-1: None, 0: 0, 4: 4}
    for asked, width in widths.items():
        rows = [maker.admit([5, 6, 7]), maker.admit([8, 9], logprobs=asked)]
        output = stages.run(maker.step([(row, 1) for row in rows]))
        assert (output.tokens, output.sampled, output.scored) == (b"", None, None)
        output = stages.run(maker.step([(row, len(row.tokens) - 1) for row in rows]))
        assert (output.sampled.width if output.sampled else None) == width


def test_warming_up_leaves_no_trace(llama: Path) -> None:
    runner = Stages(llama).runners[0]
    assert not any(
        layer.keys.any() or layer.values.any() for layer in runner.kv_cache.layers.values()
    )
    assert not runner.slots.block_tables[:-1].any()
    assert not runner.slots.last_tokens.any()
