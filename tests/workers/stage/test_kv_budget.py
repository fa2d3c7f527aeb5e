"""The largest step, by which a device's memory is measured."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workers.checkpoints import LLAMA, load_share, with_execution, worker_config
from workers.attention.backend_selection import select_backends
from workers.device.choices import Choices
from workers.stage.decode_runner import DecodeRunner
from workers.stage.kv_budget import largest_step
from workers.stage.model_runner import attention_needs, blocks_of

LONGEST = LLAMA["max_position_embeddings"]


@pytest.mark.parametrize(
    ("max_running", "max_step_tokens", "tokens", "longest"),
    [
        (8, 256, 256, 32),
        (8, 251, 251, 32),  # what does not divide is in the step too
        (7, 3, 3, 1),
        (4, 4000, 4 * LONGEST, LONGEST),
    ],
)
def test_the_largest_step_is_as_large_as_a_step_may_be(
    llama: Path, max_running: int, max_step_tokens: int, tokens: int, longest: int
) -> None:
    config = with_execution(
        worker_config(llama), max_running=max_running, max_step_tokens=max_step_tokens
    )
    step = largest_step(config.execution)
    lens = np.frombuffer(step.query_lens, np.int32)
    assert (lens.sum(), lens.max()) == (tokens, longest)
    assert len(lens) == min(max_running, max_step_tokens)
    blocks = blocks_of(step)
    backends = select_backends("auto", attention_needs(config.execution), Choices())
    runner = DecodeRunner(config, load_share(config), backends, blocks)
    with torch.inference_mode():
        runner.run_alone(step)
    assert runner.kv_cache is not None
    written = runner.kv_cache.layers[0].keys[:blocks].flatten(2).any(dim=-1).sum()
    assert int(written) == tokens
