"""Decode steps -> tensors, on steps small enough to be worked out by hand."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.workers.checkpoints import load_share, with_execution, worker_config
from tests.workers.step_maker import int32
from workers.attention.backend_selection import select_backends
from workers.contract.messages import DecodeStep, SlotInit
from workers.contract.token_sampling import TokenSampling
from workers.device.choices import Choices
from workers.stage.decode_runner import DecodeRunner
from workers.stage.model_runner import attention_needs

BLOCK_SIZE = 4


def int32_tensor(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def slot_init(slot: int, prompt_len: int, **given) -> SlotInit:
    sampling = TokenSampling(temperature=0.5, top_k=3, top_p=0.75)
    return SlotInit(slot=slot, prompt_len=prompt_len, **{"sampling": sampling, "seed": 9} | given)


@pytest.fixture
def runner(llama: Path) -> DecodeRunner:
    return stage_of(llama, 0, 1)


def stage_of(llama: Path, stage: int, num_stages: int) -> DecodeRunner:
    config = worker_config(llama, stage=stage, num_stages=num_stages)
    config = with_execution(config, max_running=4, max_model_len=8 * BLOCK_SIZE)
    assert config.execution.block_size == BLOCK_SIZE
    backends = select_backends("auto", attention_needs(config.execution), Choices())
    return DecodeRunner(config, load_share(config), backends, num_blocks=12)


def two_rows(tokens: list[int]) -> DecodeStep:
    """Slot 2 has tokens 3..7 of a prompt of 8, slot 0 the token after a prompt of 8."""
    return DecodeStep(
        step=7,
        tokens=int32(tokens),
        query_lens=int32([5, 1]),
        slots=int32([2, 0]),
        starts=int32([3, 8]),
        sample=b"\0\1",
        block_updates=int32([2, 0, 11, 2, 1, 5, 0, 0, 9, 0, 1, 8, 0, 2, 4]),
        inits=[slot_init(2, 10), slot_init(0, 6, logprobs=2, seed=2**63 - 1)],
        targets=int32([21, 22, 23, -1, -1, -1]),
    )


def test_a_decoder_step_is_flat(runner: DecodeRunner) -> None:
    step = runner.prepare(two_rows([1, 2, 3, 4, 5, 6])).tensors
    assert step.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert step.positions.tolist() == [3, 4, 5, 6, 7, 8]
    assert step.kv_indices.tolist() == [11 * 4 + 3, 5 * 4, 5 * 4 + 1, 5 * 4 + 2, 5 * 4 + 3, 4 * 4]
    assert step.block_tables[step.slots, :3].tolist() == [[11, 5, 0], [9, 8, 4]]
    assert step.query_starts.tolist() == [0, 5, 6]
    assert step.context_lens.tolist() == [8, 9]
    assert step.query_lens.tolist() == [5, 1]
    assert step.contexts.tolist() == [8, 9]
    assert step.num_tokens == 6
    dtypes = (step.tokens, step.positions, step.kv_indices)
    assert all(tensor.dtype == torch.int64 for tensor in dtypes)
    assert step.block_tables.dtype == step.query_starts.dtype == torch.int32


def test_rows_that_sample_carry_their_parameters(runner: DecodeRunner) -> None:
    requested = runner.prepare(two_rows([1] * 6)).requested
    assert requested.num_rows == 1
    assert requested.last_token_indices is not None
    assert requested.last_token_indices.tolist() == [5]
    sampling = requested.sampling
    assert sampling is not None
    assert sampling.device_slots.tolist() == [0]
    assert sampling.width == 2
    (parameters,) = sampling.rows.parameters
    expected = {"temperature": 0.5, "top_k": 3, "top_p": 0.75, "seed": 2**63 - 1}
    assert {name: parameters[name] for name in expected} == expected
    assert sampling.rows.index.tolist() == [9 - 6]


def test_where_nothing_is_scored_only_last_tokens_are_requested(runner: DecodeRunner) -> None:
    message = msgspec.structs.replace(two_rows([1] * 6), targets=b"")
    requested = runner.prepare(message).requested
    assert requested.sampling is not None
    assert requested.last_token_indices is None
    assert requested.sampling.device_slots.tolist() == [0]
    last = requested.last_tokens
    assert last is not None
    assert last.indices.tolist() == [5, 0, 0, 0]
    assert last.rows.slots.tolist() == [0]
    assert last.rows.query_starts.tolist() == [0, 1]
    assert last.rows.context_lens.tolist() == last.rows.contexts.tolist() == [9]


def test_where_every_token_samples_all_are_requested(runner: DecodeRunner) -> None:
    short = {"tokens": int32([1, 2]), "query_lens": int32([1, 1]), "sample": b"\1\1"}
    message = msgspec.structs.replace(two_rows([1] * 6), targets=b"", inits=[], **short)
    requested = runner.prepare(message).requested
    assert requested.sampling is not None
    assert requested.last_token_indices is requested.last_tokens is None
    assert requested.sampling.device_slots.tolist() == [2, 0]


def test_only_the_last_stage_samples_and_only_the_first_resolves_tokens(llama: Path) -> None:
    runner = stage_of(llama, 1, 3)
    runner.slots.store_last_tokens(int32_tensor([0]), int32_tensor([42]))
    batch = runner.prepare(two_rows([1, 2, 3, 4, 5, -1]))
    assert batch.requested.sampling is None
    assert batch.requested.scoring is None
    batch.tensors.resolve(runner.slots)
    assert batch.tensors.tokens.tolist() == [1, 2, 3, 4, 5, -1]


@pytest.mark.parametrize(("newest", "found"), [(42, 42), (-1, 0)])
def test_a_missing_token_is_the_last_one_of_its_slot(
    runner: DecodeRunner, newest: int, found: int
) -> None:
    """That of a failed row never reaches the embedding."""
    step = runner.prepare(two_rows([1, 2, 3, 4, 5, -1])).tensors
    # Later than the step is prepared: its token may still be on its way.
    runner.slots.store_last_tokens(int32_tensor([0, 2]), int32_tensor([newest, 43]))
    step.resolve(runner.slots)
    assert step.tokens.tolist() == [1, 2, 3, 4, 5, found]


def test_slots_keep_what_later_steps_do_not_repeat(runner: DecodeRunner) -> None:
    runner.prepare(two_rows([1] * 6))
    given = {"tokens": [7], "query_lens": [1], "slots": [0], "starts": [9]}
    arrays: dict[str, Any] = {name: int32(values) for name, values in given.items()}
    later = DecodeStep(step=8, sample=b"\1", **arrays)
    batch = runner.prepare(later)
    step, sampling = batch.tensors, batch.requested.sampling
    assert step.tokens.tolist() == [7, 0, 0, 0]  # padded to four
    assert step.positions.tolist() == [9, 0, 0, 0]
    assert step.kv_indices.tolist() == [4 * 4 + 1]
    assert step.block_tables[step.slots, :3].tolist() == [[9, 8, 4]]
    assert sampling is not None
    assert sampling.rows.index.tolist() == [4]
    assert batch.requested.scoring is None
