"""Which layers each stage gets, from what the stages measured."""

import logging
from collections.abc import Sequence
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
    model = msgspec.structs.replace(MODEL, num_layers=num_layers)
    changes.setdefault("devices", ("cuda:0", "cuda:1"))
    return execution_config(model=model, **changes)


def chosen(stages: Sequence[StageCosts], num_layers: int = LAYERS) -> tuple[int, ...]:
    return choose_layers(execution(num_layers), stages)


@pytest.mark.parametrize(
    ("num_stages", "expected"), [(2, (17, 15)), (3, (11, 11, 10)), (4, (8, 9, 8, 7))]
)
def test_the_stage_with_the_head_has_fewer_layers(
    num_stages: int, expected: tuple[int, ...]
) -> None:
    assert chosen([costs()] * num_stages) == expected


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("head", [1.5, 2.4, 8.0])
def test_no_other_partition_has_a_faster_slowest_stage(num_stages: int, head: float) -> None:
    stages, even = [costs(head=head)] * num_stages, even_split(12, num_stages)

    def time(layers: Sequence[int]) -> float:
        weighted = ((3, "decode"), (1, "prompts"))
        # What all stages take is the same in any partition: the units are those of the even split.
        units = {"decode": 12 + head + 0.01, "prompts": 12 + 0.01 - 0.6}
        return max(
            sum(
                weight * (count + (s == 0) * 0.01 + (s == num_stages - 1) * end) / units[kind]
                for (weight, kind), end in zip(weighted, (head, -0.6), strict=True)
            )
            for s, count in enumerate(layers)
        )

    best = min(map(time, partitions(12, num_stages)))
    found = chosen(stages, 12)
    assert time(found) == pytest.approx(best) or found == even
    assert time(found) <= 1.02 * best


def partitions(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    """All of them, each stage with one layer or more."""
    if num_stages == 1:
        return [(num_layers,)]
    return [
        (first, *rest)
        for first in range(1, num_layers - num_stages + 2)
        for rest in partitions(num_layers - first, num_stages - 1)
    ]


def test_an_encoder_without_a_head_is_split_evenly() -> None:
    none = PartCosts(0.0, 0.001, 0)
    encoder = StageCosts(PartCosts(0.0, 1.0, 1), none, none, 0)
    for num_stages in (2, 3, 5):
        assert chosen([encoder] * num_stages, 12) == even_split(12, num_stages)


def test_the_head_of_an_encoder_counts() -> None:
    """SPLADE's is an LM head over all tokens."""
    none = PartCosts(0.0, 0.001, 0)
    splade = StageCosts(PartCosts(0.0, 1.0, 1), none, PartCosts(0.0, 4.0, 1), 0)
    assert chosen([splade] * 2, 12) == (8, 4)


def test_a_slow_device_gets_fewer_layers() -> None:
    slow = costs(decode=2.0, prompts=2.0, head=0.0)
    assert chosen([costs(head=0.0), slow], 30) == (20, 10)


def test_a_gain_under_two_percent_is_none() -> None:
    """17 and 15 layers gain little over 16 and 16 if the head weighs little."""
    assert chosen([costs(head=1.4)] * 2) == (16, 16)
    assert chosen([costs(head=2.2)] * 2) == (17, 15)


def test_noise_of_equal_devices_moves_no_layer() -> None:
    for noise in (0.95, 0.98, 1.0, 1.04):
        stages = [costs(), costs(decode=noise, prompts=noise), costs(decode=1.01), costs()]
        assert chosen(stages) == (8, 9, 8, 7)


def test_stages_of_one_device_differ_by_noise_alone() -> None:
    stages = [costs(decode=noise, prompts=noise) for noise in (1.0, 1.7, 0.6, 1.1)]
    assert choose_layers(execution(devices=("cpu",) * 4), stages) == (8, 9, 8, 7)
    assert chosen(stages) != (8, 9, 8, 7)


def test_a_partition_that_costs_many_blocks_is_not_taken() -> None:
    """Nine layers for eight leave eight ninths of the blocks."""
    stages = [costs(kv_block_bytes=1 << 19)] * 4
    share = execution(memory_shares=(120 * GIB,) * 4, max_model_len=131_072, max_running=1024)
    assert choose_layers(share, stages) == (8, 8, 8, 8)
    assert choose_layers(share, stages[:2]) == (17, 15)
    size = execution(kv_cache_bytes=64 * GIB, max_model_len=131_072, max_running=1024)
    assert choose_layers(size, stages) == (8, 8, 8, 8)
    assert choose_layers(size, stages[:2]) == (17, 15)


def test_blocks_that_nobody_can_use_are_not_missed() -> None:
    stages = [costs(kv_block_bytes=1 << 19)] * 4
    share = execution(memory_shares=(120 * GIB,) * 4, max_model_len=512, max_running=64)
    assert choose_layers(share, stages) == (8, 9, 8, 7)


def test_where_nothing_fits_the_split_is_even() -> None:
    stages = [costs(kv_block_bytes=1 << 19)] * 2
    assert choose_layers(execution(memory_shares=(1 * GIB,) * 2), stages) == (16, 16)


def test_as_many_stages_as_layers() -> None:
    assert chosen([costs()] * 4, 4) == (1, 1, 1, 1)
    with pytest.raises(ModelConfigError, match="4 layers cannot be split over 5 pipeline stages"):
        chosen([costs()] * 5, 4)


def connected(stages: Sequence[StageCosts | None]) -> list[WorkerConnected]:
    """What the stages send, the last one first."""
    return [WorkerConnected(stage, own) for stage, own in enumerate(stages)][::-1]


def test_the_log_names_layers_and_busy_shares(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shares = stage_shares(execution(), connected([costs(head=2.4)] * 2))
    assert shares == shares_of([17, 15])
    assert caplog.messages == [
        "layers by stage: 17, 15; expected to be busy: decoding 98%, 100%; prompts 100%, 85%"
    ]


def test_what_a_person_asks_for_is_done(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = execution(stage_layers=(1, 31))
    assert stage_shares(asked, connected([None, None])) == shares_of([1, 31])
    assert caplog.messages == ["layers by stage: 1, 31"]


def test_nothing_measured_is_split_evenly() -> None:
    assert stage_shares(execution(), connected([None] * 3)) == shares_of([11, 11, 10])
    assert stage_shares(execution(), connected([None])) == shares_of([32])


def unmeasured(own: StageCosts) -> StageCosts:
    """What a stage sends that had no time for `own`."""

    def none(part: PartCosts) -> PartCosts:
        return PartCosts(0.0, 0.0, part.weight_bytes)

    return StageCosts(none(own.layer), none(own.embedding), none(own.head), own.kv_block_bytes)


def test_weights_stand_for_times_if_one_stage_had_none(caplog: pytest.LogCaptureFixture) -> None:
    stages = [costs(decode=0.001, prompts=0.002)] * 3
    shares = stage_shares(execution(), connected([*stages, unmeasured(stages[0])]))
    assert shares == shares_of([8, 9, 8, 7])
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "could not measure layers in time" in warning.message


def test_by_weights_the_head_of_an_encoder_counts_on_prompts() -> None:
    layer, embedding, head = (
        PartCosts(0.0, 0.0, size) for size in (14_000_000, 47_000_000, 48_000_000)
    )
    stages = [StageCosts(layer, embedding, head, 0)] * 2
    encoder = execution(12, task="embed_sparse")
    assert stage_shares(encoder, connected(stages)) == shares_of([8, 4])
