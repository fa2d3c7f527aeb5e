"""A decoder's stages without an engine: every position, over every way to cut up the work."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.checkpoints import LLAMA, save_llama
from tests.workers.step_tensors import Stages

PROMPTS = [
    random.Random(row).choices(range(LLAMA["vocab_size"]), k=length)
    for row, length in enumerate((41, 16, 9, 5))
]

Work = list[tuple[int, int]]
"""One step: (prompt, how many of its tokens) of each row."""

WHOLE: list[Work] = [[(0, 41), (1, 16), (2, 9), (3, 5)]]
ONE_BY_ONE: list[Work] = [[(row, 1)] for row in range(4) for _ in PROMPTS[row]]
CHUNKS: list[Work] = [
    [(0, 7)],
    [(0, 1), (1, 4)],
    [(0, 20), (1, 1), (2, 8)],
    [(0, 4), (1, 1), (2, 1), (3, 2)],
    [(3, 1), (1, 5), (0, 1)],
    [(0, 8), (1, 5), (3, 2)],
]
DECODES: list[Work] = [[(0, 37), (1, 12), (2, 5), (3, 1)], *[[(row, 1) for row in range(4)]] * 4]
SCHEDULES = {"whole": WHOLE, "one_by_one": ONE_BY_ONE, "chunks": CHUNKS, "decodes": DECODES}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[torch.Tensor]]:
    folder = tmp_path_factory.mktemp("plain")
    return folder, reference(save_llama(folder))


def reference(model: Any) -> list[torch.Tensor]:
    """Log-probabilities [tokens, vocab_size] of each prompt; they must be worth comparing."""
    with torch.inference_mode():
        logits = [model(torch.tensor([prompt])).logits[0] for prompt in PROMPTS]
    assert all(own.std(dim=-1).min() >= 1 for own in logits)
    return [own.log_softmax(dim=-1) for own in logits]


def run_schedule(stages: Stages, schedule: Sequence[Work]) -> list[torch.Tensor]:
    """Log-probabilities at every token of each prompt, which must come out complete."""
    rows: dict[int, list[torch.Tensor]] = {row: [] for row in range(len(PROMPTS))}
    for work in schedule:
        given = [
            (row, PROMPTS[row][(done := stages.lengths.get(row, 0)) : done + count])
            for row, count in work
        ]
        for (row, _), logits in zip(work, stages.logits(stages.take(given)), strict=True):
            rows[row].append(logits.log_softmax(dim=-1))
    joined = [torch.cat(pieces) for pieces in rows.values()]
    assert [len(own) for own in joined] == [len(prompt) for prompt in PROMPTS]
    return joined


def largest_difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_position_agrees_with_transformers(
    plain: tuple[Path, list[torch.Tensor]], schedule: str
) -> None:
    folder, expected = plain
    ours = run_schedule(Stages(folder), SCHEDULES[schedule])
    assert largest_difference(ours, expected) <= 1e-4


@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_stages_do_not_change_a_bit(tmp_path: Path, num_stages: int, tied: bool) -> None:
    save_llama(tmp_path, tie_word_embeddings=tied)
    whole, split = Stages(tmp_path), Stages(tmp_path, num_stages=num_stages)
    for work in CHUNKS:
        step = [(row, PROMPTS[row][:count]) for row, count in work]
        for a, b in zip(
            whole.logits(whole.take(step)), split.logits(split.take(step)), strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("schedule", ["one_by_one", "chunks", "decodes"])
def test_naive_attention_is_bitwise_independent_of_batching(
    plain: tuple[Path, list[torch.Tensor]], schedule: str
) -> None:
    whole = run_schedule(Stages(plain[0], backend="naive"), WHOLE)
    ours = run_schedule(Stages(plain[0], backend="naive", num_stages=2), SCHEDULES[schedule])
    assert all(torch.equal(a, b) for a, b in zip(ours, whole, strict=True))


def test_a_sharded_checkpoint_is_the_same_model(tmp_path: Path) -> None:
    single, sharded = tmp_path / "single", tmp_path / "sharded"
    save_llama(single)
    save_llama(sharded, shard_size="60KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    ours = run_schedule(Stages(sharded, num_stages=2), WHOLE)
    expected = run_schedule(Stages(single, num_stages=2), WHOLE)
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_two_blocks_swapped_are_noticed(plain: tuple[Path, list[torch.Tensor]]) -> None:
    """Between two rows: within one, a cached block is the same wherever its table has it."""
    folder, expected = plain
    stages = Stages(folder)
    stages.run(stages.take([(row, PROMPTS[row][:-1]) for row in (0, 1)]))
    first, second = stages.tables[0], stages.tables[1]
    first[2], second[1] = second[1], first[2]
    logits = stages.logits(stages.take([(row, PROMPTS[row][-1:]) for row in (0, 1)]))
    for row in (0, 1):
        assert (logits[row].log_softmax(dim=-1) - expected[row][-1]).abs().max() > 1e-2


def test_a_shifted_position_is_noticed(plain: tuple[Path, list[torch.Tensor]]) -> None:
    folder, expected = plain
    stages = Stages(folder)
    stages.run(stages.take([(0, PROMPTS[0][:-1])]))
    step = stages.take([(0, PROMPTS[0][-1:])])
    (logits,) = stages.logits(dataclasses.replace(step, positions=step.positions + 1))
    assert (logits.log_softmax(dim=-1) - expected[0][-1]).abs().max() > 1e-2


def test_bfloat16_is_no_further_off_than_transformers(tmp_path: Path) -> None:
    """Mean distance of the log-probabilities from those of float32."""
    model = save_llama(tmp_path)
    exact, theirs = reference(model), reference(model.bfloat16())
    ours = run_schedule(Stages(tmp_path, dtype="bfloat16"), CHUNKS)
    distances = [
        torch.cat(rounded).float().sub(torch.cat(exact)).abs().mean() for rounded in (ours, theirs)
    ]
    assert 0 < distances[0] <= 1.2 * distances[1]
