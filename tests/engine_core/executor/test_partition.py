"""Which layers each stage gets, from what the stages measured."""

import itertools
import logging
from collections.abc import Sequence
from operator import sub
from typing import Any

import msgspec
import pytest

from engine_core.executor.partition import choose_layers, stage_shares
from tests.engine_core.configs import MODEL, execution_config
from workers.contract.config import ExecutionConfig
from workers.contract.messages import WorkerConnected
from workers.contract.model_config import ModelConfigError
from workers.contract.share import PartCosts, StageCosts, even_split, shares_of

GIB = 1 << 30
LAYERS = 32  # of an 8B Llama


def costs(
    *, decode: float = 1.0, prompts: float = 1.0, head: float = 2.4, kv_block_bytes: int = 0
) -> StageCosts:
    """An 8B Llama's. Times in those of a layer: the head weighs 2.4 layers when decoding; when
    reading prompts it takes less than the last layer saves, which computes their last tokens."""
    return StageCosts(
        layer=PartCosts(decode, prompts, 436_224_000),
        embedding=PartCosts(0.01, 0.01, 1_050_673_152),
        head=PartCosts(head * decode, -0.6 * prompts, 1_050_681_344),
        kv_block_bytes=kv_block_bytes,
    )


def execution(num_layers: int = LAYERS, **changes: Any) -> ExecutionConfig:
    """Of stages on GPUs of their own."""
    kinds = (0,) * num_layers
    model = msgspec.structs.replace(MODEL, num_layers=num_layers, layer_kinds=kinds)
    changes.setdefault("devices", ("cuda:0", "cuda:1"))
    return execution_config(model=model, **changes)


def chosen(stages: Sequence[StageCosts], num_layers: int = LAYERS) -> tuple[int, ...]:
    return choose_layers(execution(num_layers), stages)


NONE = PartCosts(0.0, 0.001, 0)


def encoder(head: PartCosts = NONE) -> StageCosts:
    return StageCosts(PartCosts(0.0, 1.0, 1), NONE, head, 0)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([costs()] * 2, (17, 15)),
        ([costs()] * 3, (11, 11, 10)),
        ([costs()] * 4, (8, 9, 8, 7)),
        # 17 and 15 layers gain under two percent over 16 and 16 if the head weighs little.
        ([costs(head=1.4)] * 2, (16, 16)),
        ([costs(head=2.2)] * 2, (17, 15)),
        *[([encoder()] * stages, even_split(LAYERS, stages)) for stages in (2, 3, 5)],
        # SPLADE's head is an LM head over all tokens.
        ([encoder(PartCosts(0.0, 10.0, 1))] * 2, (21, 11)),
        ([costs(head=0.0), costs(decode=2.0, prompts=2.0, head=0.0)], (21, 11)),
    ],
)
def test_what_the_stages_measure_decides(
    stages: list[StageCosts], expected: tuple[int, ...]
) -> None:
    """A head or a slow device means fewer layers."""
    assert chosen(stages) == expected


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("head", [1.5, 2.4, 8.0])
def test_no_other_partition_has_a_faster_slowest_stage(num_stages: int, head: float) -> None:
    stages, even = [costs(head=head)] * num_stages, even_split(12, num_stages)

    def time(layers: Sequence[int]) -> float:
        # What all stages take is the same in any partition: the units are those of the even split.
        return max(
            sum(
                weight * (count + (s == 0) * 0.01 + (s == num_stages - 1) * end) / (12.01 + end)
                for weight, end in ((3, head), (1, -0.6))
            )
            for s, count in enumerate(layers)
        )

    best = min(map(time, partitions(12, num_stages)))
    found = chosen(stages, 12)
    assert time(found) == pytest.approx(best) or found == even
    assert time(found) <= 1.02 * best


def partitions(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    """All of them, each stage with one layer or more."""
    ends = itertools.combinations(range(1, num_layers), num_stages - 1)
    return [tuple(map(sub, (*each, num_layers), (0, *each))) for each in ends]


KV = costs(kv_block_bytes=1 << 19)
LARGE = {"max_model_len": 131_072, "max_running": 1024}


@pytest.mark.parametrize(
    ("budget", "num_stages", "expected"),
    [
        # Nine layers for eight leave eight ninths of the blocks.
        (LARGE | {"memory_shares": (120 * GIB,) * 4}, 4, (8, 8, 8, 8)),
        (LARGE | {"memory_shares": (120 * GIB,) * 4}, 2, (17, 15)),
        (LARGE | {"kv_cache_bytes": 64 * GIB}, 4, (8, 8, 8, 8)),
        (LARGE | {"kv_cache_bytes": 64 * GIB}, 2, (17, 15)),
        # Blocks that nobody can use are not missed.
        ({"memory_shares": (120 * GIB,) * 4, "max_model_len": 512, "max_running": 64}, 4,
         (8, 9, 8, 7)),
        # Nothing fits.
        ({"memory_shares": (1 * GIB,) * 2}, 2, (16, 16)),
    ],
)  # fmt: skip
def test_a_partition_that_costs_many_blocks_is_not_taken(
    budget: dict[str, Any], num_stages: int, expected: tuple[int, ...]
) -> None:
    assert choose_layers(execution(**budget), [KV] * num_stages) == expected


FAST, SLOW = KV, costs(decode=2.0, prompts=2.0, kv_block_bytes=1 << 19)


@pytest.mark.parametrize(
    ("stages", "gib", "expected"),
    [
        # One does not hold half of the layers: it gets as many as leave a quarter of the blocks
        # that are to be had.
        ([FAST, FAST], (10, 60), (7, 25)),
        ([FAST, FAST], (60, 10), (25, 7)),
        # More memory alone is no reason, as much memory none to keep a slow device busy.
        ([FAST, FAST], (120, 240), (17, 15)),
        ([SLOW, FAST], (120, 120), (11, 21)),
        ([SLOW, FAST], (120, 20), (20, 12)),
        ([FAST, SLOW, FAST, FAST], (60, 60, 8, 60), (12, 6, 3, 11)),
    ],
)
def test_unlike_devices_get_what_their_time_and_memory_allow(
    stages: list[StageCosts], gib: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    shares = tuple(each * GIB for each in gib)
    devices = tuple(f"cuda:{stage}" for stage in range(len(gib)))
    config = execution(**LARGE, memory_shares=shares, devices=devices, nodes=tuple(range(len(gib))))
    assert choose_layers(config, stages) == expected


def test_as_many_stages_as_layers() -> None:
    assert chosen([costs()] * 4, 4) == (1, 1, 1, 1)
    with pytest.raises(ModelConfigError, match="4 layers cannot be split over 5 pipeline stages"):
        chosen([costs()] * 5, 4)


def connected(stages: Sequence[StageCosts | None]) -> list[WorkerConnected]:
    """What the stages send, the last one first."""
    return [WorkerConnected(stage, own) for stage, own in enumerate(stages)][::-1]


@pytest.mark.parametrize(
    ("changes", "stages", "layers"),
    [
        ({}, [costs(head=2.4)] * 2, [17, 15]),
        ({"stage_layers": (1, 31)}, [None, None], [1, 31]),
        ({}, [None] * 3, [11, 11, 10]),
        ({}, [None], [32]),
    ],
    ids=["measured", "asked for", "nothing measured", "one stage"],
)
def test_the_log_names_the_layers_of_several_stages(
    caplog: pytest.LogCaptureFixture, changes: Any, stages: list[Any], layers: list[int]
) -> None:
    caplog.set_level(logging.INFO)
    assert stage_shares(execution(**changes), connected(stages)) == shares_of(layers)
    line = f"layers by stage: {', '.join(map(str, layers))}"
    assert caplog.messages == [line] * (len(layers) > 1)
