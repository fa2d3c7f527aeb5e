"""The cache's layout and size, and blocks that are copied within it."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from tests.workers.checkpoints import LLAMA, save_llama
from tests.workers.stages import NUM_BLOCKS, Stages, sampled_tokens
from tests.workers.step_maker import Row, StepMaker
from workers.attention import kv_cache
from workers.attention.kv_cache import KVCache, kv_block_bytes
from workers.contract.checkpoint.checkpoint_config import read_model_config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_takes_the_bytes_that_are_said(tmp_path: Path, dtype: torch.dtype) -> None:
    save_llama(tmp_path, num_key_value_heads=1, head_dim=24)
    config = read_model_config(tmp_path)
    cache = KVCache(config, 3, 5, 16, dtype, torch.device("cpu"))
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    assert len(tensors) == 6
    for tensor in tensors:
        assert tensor.shape == (5 + 1, 16, 1, 24), "one more for rows that only pad a step"
        assert tensor.dtype == dtype
        assert not tensor.any()
    assert (
        cache.nbytes
        == sum(tensor.nbytes for tensor in tensors)
        == 6 * kv_block_bytes(config, 3, 16, dtype)
    )


@pytest.mark.parametrize(
    ("pairs", "together"),
    [
        ([[5, 1], [5, 2], [7, 3]], True),
        ([[5, 1], [8, 5]], False),
        ([[5, 1], [1, 2]], False),
        ([[5, 1], [6, 1]], False),
    ],
)
def test_copies_run_at_once_unless_their_order_matters(
    pairs: list[list[int]], together: bool
) -> None:
    launches = [launch.tolist() for launch in kv_cache._launches(np.array(pairs, np.int32))]
    assert launches == ([pairs] if together else [[pair] for pair in pairs])


VOCABULARY: int = LLAMA["vocab_size"]
PREFIX = [7 + index % (VOCABULARY - 10) for index in range(0, 37 * 5, 5)]
OWN = [11, 4, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_llama(folder)
    return folder


def last_logprobs(stages: Stages, maker: StepMaker, row: Row, copies: bytes = b"") -> np.ndarray:
    """The log-probabilities of every token behind `row`, whose other tokens one step takes."""
    message = maker.step([(row, len(row.tokens) - row.submitted)])
    _, output = stages.run(msgspec.structs.replace(message, block_copies=copies))
    assert output.sampled is not None
    assert sampled_tokens(output)[0] >= 0
    order = np.argsort(np.frombuffer(output.sampled.top_ids, np.int32))
    return np.frombuffer(output.sampled.top, np.float32)[order]


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("length", [37, 32, 15])
def test_a_sequence_goes_on_within_a_copied_block(
    folder: Path, num_stages: int, length: int
) -> None:
    stages = Stages(folder, num_stages=num_stages, backend="naive")
    maker = StepMaker(stages.block_size, NUM_BLOCKS)
    prefix = PREFIX[:length]
    alone = maker.admit(prefix + OWN, logprobs=VOCABULARY)
    expected = last_logprobs(stages, maker, alone)

    leader = maker.admit([*prefix, 3, 3], logprobs=VOCABULARY)
    assert not np.allclose(last_logprobs(stages, maker, leader), expected, atol=1e-3)
    member = maker.admit(prefix + OWN, logprobs=VOCABULARY)
    copies = maker.share(leader, member, length)
    np.testing.assert_array_equal(last_logprobs(stages, maker, member, copies), expected)


def test_what_is_not_copied_is_missed(folder: Path) -> None:
    stages = Stages(folder, backend="naive")
    maker = StepMaker(stages.block_size, NUM_BLOCKS)
    alone = maker.admit(PREFIX + OWN, logprobs=VOCABULARY)
    expected = last_logprobs(stages, maker, alone)
    member = maker.admit(PREFIX + OWN, logprobs=VOCABULARY)
    maker.share(alone, member, len(PREFIX))
    assert not np.allclose(last_logprobs(stages, maker, member), expected, atol=1e-3)
