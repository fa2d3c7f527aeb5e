"""Numbers that follow from how a model is computed."""

import msgspec
import pytest

from tests.engine_core.configs import MODEL, execution_config
from workers.contract.config import Task
from workers.contract.model_config import AttentionKind


@pytest.mark.parametrize(
    ("task", "max_step_tokens", "largest"),
    [("generate", 32, 32), ("embed", 32, 256), ("classify", 512, 512)],
)
def test_an_encoders_largest_step_may_be_one_text(
    task: Task, max_step_tokens: int, largest: int
) -> None:
    kind = AttentionKind(causal=task == "generate", scale=1.0)
    model = msgspec.structs.replace(MODEL, attention=(kind,))
    config = execution_config(
        model=model, task=task, max_step_tokens=max_step_tokens, max_model_len=256
    )
    assert config.largest_step_tokens == largest


@pytest.mark.parametrize(
    ("num_stages", "steps_ahead", "slots"), [(1, 1, 0), (2, 1, 5), (2, 0, 4), (4, 1, 7)]
)
def test_the_ring_has_a_slot_for_every_step_in_flight(
    num_stages: int, steps_ahead: int, slots: int
) -> None:
    config = execution_config(num_stages, steps_ahead=steps_ahead, dtype="bfloat16")
    slot = 32 * config.model.hidden_size * 2
    assert config.activation_ring_bytes == slots * slot
    nccl = execution_config(num_stages, steps_ahead=steps_ahead, dtype="bfloat16", transport="nccl")
    assert nccl.activation_ring_bytes == (slot if num_stages > 1 else 0)
