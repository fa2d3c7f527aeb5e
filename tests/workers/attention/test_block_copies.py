"""A sequence that continues from another one's keys and values, copied within a block."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.workers.checkpoints import LLAMA, save_llama
from tests.workers.stages import NUM_BLOCKS, Stages, sampled_tokens
from tests.workers.step_maker import Row, StepMaker

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
