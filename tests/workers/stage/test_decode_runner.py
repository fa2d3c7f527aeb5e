"""A decoder's steps against transformers, and against themselves cut, batched and staged anew."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.checkpoints import LLAMA, save_llama
from tests.workers.stages import NUM_BLOCKS, Stages, sampled_tokens
from tests.workers.step_maker import Row, StepMaker

VOCABULARY: int = LLAMA["vocab_size"]
PROMPT_LENS = (19, 1, 8, 33)

Checkpoint = tuple[Path, Any]
"""A folder, and transformers' model of what is in it."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("llama")
    return folder, save_llama(folder)


def prompts() -> list[list[int]]:
    numbers = random.Random(11)
    return [[numbers.randrange(3, VOCABULARY) for _ in range(length)] for length in PROMPT_LENS]


@pytest.mark.parametrize(("chunk", "backend"), [(1, "sdpa"), (5, "naive"), (64, "sdpa")])
def test_scored_prompts_are_transformers(llama: Checkpoint, chunk: int, backend: str) -> None:
    folder, model = llama
    stages = Stages(folder, backend=backend)
    maker = StepMaker(stages.block_size, NUM_BLOCKS)
    rows = [maker.admit(prompt, prompt_logprobs=VOCABULARY - 1) for prompt in prompts()]
    chosen: dict[int, list[float]] = {row.slot: [] for row in rows}
    best: dict[int, list[int]] = {row.slot: [] for row in rows}
    while live := [row for row in rows if row.submitted < len(row.tokens)]:
        work = [(row, min(chunk, len(row.tokens) - row.submitted)) for row in live]
        message = maker.step(work, score=True)
        _, output = stages.run(message)
        owners = np.repeat([row.slot for row, _ in work], [count for _, count in work])
        owners = owners[np.frombuffer(message.targets, np.int32) >= 0]
        if not len(owners):
            assert output.scored is None
            continue
        assert output.scored is not None
        assert output.scored.width == VOCABULARY - 1
        values = np.frombuffer(output.scored.chosen, np.float32)
        ids = np.frombuffer(output.scored.top_ids, np.int32).reshape(len(owners), -1)
        for owner, value, top in zip(owners.tolist(), values.tolist(), ids, strict=True):
            chosen[owner].append(value)
            best[owner].append(int(top[0]))
    for row in rows:
        with torch.inference_mode():
            expected = model(torch.tensor([row.tokens])).logits[0, :-1].log_softmax(-1)
        own = expected[torch.arange(len(expected)), torch.tensor(row.tokens[1:], dtype=torch.long)]
        np.testing.assert_allclose(chosen[row.slot], own.numpy(), atol=1e-4)
        assert best[row.slot] == expected.argmax(-1).tolist()


Trace = dict[int, tuple[torch.Tensor, list[int], list[bytes]]]
"""By slot: hidden states of all rows that sampled, their tokens and log-probabilities."""


def trace(stages: Stages, chunk: int, batch: int, *, ahead: bool = False) -> Trace:
    """Run every prompt and 12 tokens more, `batch` rows at a time, prompts in chunks. `ahead` never
    tells the stages a sampled token: they find it in the slot."""
    maker = StepMaker(stages.block_size, NUM_BLOCKS)
    rows = [
        maker.admit(prompt, temperature=temperature, seed=5, top_p=0.9, logprobs=3)
        for prompt, temperature in zip(prompts(), (0.0, 1.0, 0.7, 1.3), strict=True)
    ]
    hidden: dict[int, list[torch.Tensor]] = {row.slot: [] for row in rows}
    tokens: dict[int, list[int]] = {row.slot: [] for row in rows}
    logprobs: dict[int, list[bytes]] = {row.slot: [] for row in rows}

    def advance(work: list[tuple[Row, int]]) -> None:
        states, output = stages.run(maker.step(work))
        sampling = [row for row, _ in work if row.submitted >= len(row.tokens)]
        for place, row in enumerate(sampling):
            hidden[row.slot].append(states[place])
            token = int(sampled_tokens(output)[place])
            tokens[row.slot].append(token)
            assert output.sampled is not None
            logprobs[row.slot].append(output.sampled.top[place * 12 : place * 12 + 12])
            if not ahead:
                row.tokens.append(token)

    for first in range(0, len(rows), batch):
        group = rows[first : first + batch]
        while live := [row for row in group if row.submitted < row.init.prompt_len + 12]:
            known = {row.slot: row.init.prompt_len - row.submitted for row in live}
            advance([(row, min(chunk, max(known[row.slot], 1))) for row in live])
    return {
        row.slot: (torch.stack(hidden[row.slot]), tokens[row.slot], logprobs[row.slot])
        for row in rows
    }


def assert_same(one: Trace, other: Trace) -> None:
    for slot, (hidden, tokens, logprobs) in one.items():
        assert torch.equal(hidden, other[slot][0])
        assert tokens == other[slot][1]
        assert logprobs == other[slot][2]


@pytest.fixture(scope="module")
def plain(llama: Checkpoint) -> Trace:
    """One stage, one row at a time, whole prompts."""
    return trace(Stages(llama[0], backend="naive"), chunk=64, batch=1)


@pytest.mark.parametrize(
    ("num_stages", "chunk", "batch"), [(1, 3, 4), (1, 64, 4), (2, 5, 3), (3, 64, 1), (4, 1, 4)]
)
def test_neither_chunks_nor_batches_nor_stages_change_a_bit(
    llama: Checkpoint, plain: Trace, num_stages: int, chunk: int, batch: int
) -> None:
    assert len({tuple(tokens) for _, tokens, _ in plain.values()}) == len(PROMPT_LENS)
    assert_same(
        plain, trace(Stages(llama[0], num_stages=num_stages, backend="naive"), chunk, batch)
    )


@pytest.mark.parametrize("num_stages", [1, 3])
def test_a_row_ahead_takes_its_token_from_the_slot(
    llama: Checkpoint, plain: Trace, num_stages: int
) -> None:
    stages = Stages(llama[0], num_stages=num_stages, backend="naive")
    assert_same(plain, trace(stages, chunk=64, batch=4, ahead=True))


def test_a_slot_and_its_blocks_change_hands(llama: Checkpoint) -> None:
    stages = Stages(llama[0], backend="naive")
    maker = StepMaker(stages.block_size, NUM_BLOCKS)
    first, second = prompts()[3], prompts()[0]
    guest = maker.admit(first, temperature=1.3, seed=3)
    stages.run(maker.step([(guest, len(first))]))
    stages.run(maker.step([(guest, 1)]))
    maker.release(guest)
    heir = maker.admit(second, slot=guest.slot)
    inherited, output = stages.run(maker.step([(heir, len(second))]))
    fresh = StepMaker(stages.block_size, NUM_BLOCKS)
    alone, expected = Stages(llama[0], backend="naive").run(
        fresh.step([(fresh.admit(second), len(second))])
    )
    assert torch.equal(inherited, alone)
    assert output.tokens == expected.tokens


def test_a_failed_row_fails_alone_and_may_still_run_ahead(llama: Checkpoint) -> None:
    def run(*, poison: bool) -> list[list[int]]:
        stages = Stages(llama[0])
        maker = StepMaker(stages.block_size, NUM_BLOCKS)
        rows = [maker.admit(prompt, temperature=0.8, seed=1) for prompt in prompts()]
        reports = [stages.run(maker.step([(row, len(row.tokens)) for row in rows]))[1]]
        if poison:
            cache = stages.runners[0].kv_cache
            cache.layers[1].values[rows[2].blocks[0]] = torch.nan
        reports += [stages.run(maker.step([(row, 1) for row in rows]))[1] for _ in range(3)]
        return [sampled_tokens(report).tolist() for report in reports]

    for clean, poisoned in zip(run(poison=False)[1:], run(poison=True)[1:], strict=True):
        assert poisoned == [-1 if row == 2 else token for row, token in enumerate(clean)]


def test_log_probabilities_are_as_wide_as_the_widest_row(llama: Checkpoint) -> None:
    """A step that only prefills has none."""
    stages = Stages(llama[0])
    maker = StepMaker(stages.block_size, NUM_BLOCKS)
    widths = {-1: None, 0: 0, 4: 4}
    for asked, width in widths.items():
        rows = [maker.admit([5, 6, 7], slot=0), maker.admit([8, 9], slot=1, logprobs=asked)]
        _, output = stages.run(maker.step([(row, 1) for row in rows]))
        assert (output.tokens, output.sampled, output.scored) == (b"", None, None)
        _, output = stages.run(maker.step([(row, len(row.tokens) - 1) for row in rows]))
        assert (output.sampled.width if output.sampled else None) == width
        for row in rows:
            maker.release(row)


def test_warming_up_leaves_no_trace(llama: Checkpoint) -> None:
    runner = Stages(llama[0]).runners[0]
    assert not any(layer.keys.any() or layer.values.any() for layer in runner.kv_cache.layers)
    assert not runner.slots.block_tables[:-1].any()
    assert not runner.slots.last_tokens.any()
