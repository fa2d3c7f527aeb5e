"""Numbers that follow from how a model is computed."""

from typing import Any

import msgspec
import pytest

from tests.engine_core.configs import MODEL, execution_config
from workers.contract.config import Task, WorkerConfig
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
    ("nodes", "changes", "slots"),
    [
        ((0,), {}, [0]),
        ((0, 0), {}, [5, 5]),
        ((0, 0), {"steps_ahead": 0}, [4, 4]),
        ((0, 0, 0, 0), {}, [7, 7, 7, 7]),
        ((0, 0), {"transport": "nccl"}, [0, 1]),
        ((0, 1), {}, [0, 1]),
        # The first stage of a host receives by NCCL, and its memory is as large as the others'.
        ((0, 0, 1, 1), {}, [7, 7, 8, 7]),
        ((0, 1, 1, 1), {"transport": "peer-memory"}, [0, 8, 7, 7]),
        ((0, 0, 1, 1), {"transport": "nccl"}, [0, 1, 1, 1]),
    ],
)
def test_a_stage_has_slots_for_what_it_receives(
    nodes: tuple[int, ...], changes: dict[str, Any], slots: list[int]
) -> None:
    """A slot for every step in flight where stages share memory, and one with NCCL."""
    own = nodes if nodes[-1] else ()
    config = execution_config(len(nodes), nodes=own, dtype="bfloat16", **changes)
    found = [config.activation_bytes(stage) for stage in range(len(nodes))]
    assert found == [number * 32 * config.model.hidden_size * 2 for number in slots]


@pytest.mark.parametrize(
    ("devices", "nodes", "visible", "own"),
    [
        ("cpu cpu", (0, 1), ["", ""], "cpu cpu"),
        ("cuda:1 cuda:0", (), ["cuda:1 cuda:0"] * 2, "cuda:0 cuda:1"),
        ("cuda:2 cuda:2", (), ["cuda:2"] * 2, "cuda:0 cuda:0"),
        (
            "cuda:0 cuda:1 cuda:1 cuda:3",
            (0, 0, 1, 1),
            ["cuda:0 cuda:1"] * 2 + ["cuda:1 cuda:3"] * 2,
            "cuda:0 cuda:1 cuda:0 cuda:1",
        ),
    ],
)
def test_a_worker_sees_the_gpus_of_its_own_host(
    devices: str, nodes: tuple[int, ...], visible: list[str], own: str
) -> None:
    config = execution_config(devices=tuple(devices.split()), nodes=nodes)
    workers = [WorkerConfig(execution=config, stage=stage) for stage in range(config.num_stages)]
    assert [" ".join(worker.gpus) for worker in workers] == visible
    assert " ".join(worker.local_device for worker in workers) == own
