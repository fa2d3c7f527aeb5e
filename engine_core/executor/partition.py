"""Chooses how many layers each stage of a pipeline gets, from what its workers measured.

A pipeline is as fast as its slowest stage. The last one also has the LM head, which takes as long
as some layers when decoding and next to nothing on prompts. So no partition is even in both.
"""

import logging
from collections.abc import Callable, Sequence
from operator import attrgetter

from workers.contract.config import ExecutionConfig
from workers.contract.messages import WorkerConnected
from workers.contract.share import PartCosts, Share, StageCosts, even_layers, shares_of

log = logging.getLogger(__name__)

DECODE_WEIGHT = 3
"""Times of decoding and prompts for equally many tokens, in steps of 64 rows (8B Llama, H200)."""

LEAST_GAIN = 1.02
"""Less is within the noise of a measurement, and another start would choose otherwise."""

LEAST_BLOCKS = 0.9
"""The part of the even split's KV blocks that a partition must keep. It may lose as large a part as
that of the time which the best one saves, if that is more."""

LEAST_OF_MOST = 0.25
"""The part that it must keep of the most KV blocks that any partition has. The even split over
unlike devices may have few, or none."""

OTHER_BYTES = 3 << 30
"""An estimate of what a GPU holds beside weights and KV cache, which is measured after loading."""

PartTime = Callable[[PartCosts], float]

_decode: PartTime = attrgetter("decode")
_prompts: PartTime = attrgetter("prompts")


def stage_shares(execution: ExecutionConfig, connected: Sequence[WorkerConnected]) -> list[Share]:
    """Each stage's share: as asked for, else by measurement, else even. Raises ModelConfigError."""
    in_order = sorted(connected, key=lambda message: message.stage)
    costs = [message.costs for message in in_order if message.costs is not None]
    if execution.stage_layers:
        layers = execution.stage_layers
    elif len(costs) == len(connected):
        layers = choose_layers(execution, costs)
    else:
        layers = even_layers(execution.model, len(connected))
    if len(layers) > 1:
        log.info("layers by stage: %s", ", ".join(map(str, layers)))
    return shares_of(layers)


def choose_layers(execution: ExecutionConfig, costs: Sequence[StageCosts]) -> tuple[int, ...]:
    """How many layers each stage gets, so that the slowest one takes the least time.

    The even split stays unless it has too few KV blocks, or another is faster by `LEAST_GAIN` and
    has enough. Raises ModelConfigError as `stage_shares` does.
    """
    even = even_layers(execution.model, len(costs))
    time = _weighted_time(costs, even)

    def fastest(most: Sequence[int]) -> tuple[tuple[int, ...], float]:
        """With its time relative to the even split's."""
        least = _least_layers(execution, len(costs))
        found = _least_slowest(costs, time, (least, most), sum(even))
        of_found, of_even = (max(_seconds(costs, layers, time)) for layers in (found, even))
        return found, of_found / of_even

    _, least_time = fastest([sum(even) for _ in even])
    most = _most_layers(execution, costs, even, min(LEAST_BLOCKS, least_time))
    best, relative = fastest(most)
    has_room = all(layers <= limit for layers, limit in zip(even, most, strict=True))
    return even if has_room and LEAST_GAIN * relative > 1 else best


def _least_layers(execution: ExecutionConfig, num_stages: int) -> list[int]:
    """The fewest layers of each stage. The last one has all that stay together."""
    return [1] * (num_stages - 1) + [execution.model.layers_together]


def _seconds(
    costs: Sequence[StageCosts], stage_layers: Sequence[int], time: PartTime
) -> list[float]:
    """The time of each stage, summed over its parts."""
    each = zip(costs, stage_layers, strict=True)
    seconds = [layers * time(stage.layer) for stage, layers in each]
    seconds[0] += time(costs[0].embedding)
    seconds[-1] += time(costs[-1].head)
    return seconds


def _weighted_time(costs: Sequence[StageCosts], even: Sequence[int]) -> PartTime:
    """Weigh a part's times for decoding and for prompts, each relative to the even split's."""
    decode, prompts = (sum(_seconds(costs, even, time)) for time in (_decode, _prompts))
    decode_unit = DECODE_WEIGHT / decode if decode else 0.0
    return lambda part: decode_unit * part.decode + part.prompts / prompts


def _least_slowest(
    costs: Sequence[StageCosts],
    time: PartTime,
    bounds: tuple[Sequence[int], Sequence[int]],
    num_layers: int,
) -> tuple[int, ...]:
    """The partition whose slowest stage is the fastest, with at least `bounds[0][s]` and at most
    `bounds[1][s]` layers in stage s.

    Each layer goes to the stage that ends first with it, a middle one if several do. This is
    optimal, because a stage's time only rises with its layers.
    """
    stages = range(len(costs))
    by_preference = [*stages[1:-1], stages[0], stages[-1]]
    (least, most), fixed = bounds, _seconds(costs, [0 for _ in stages], time)
    layers = list(least)

    def time_with_one_more(stage: int) -> float:
        return fixed[stage] + (layers[stage] + 1) * time(costs[stage].layer)

    for _ in range(num_layers - sum(layers)):
        open_stages = [stage for stage in by_preference if layers[stage] < most[stage]]
        layers[min(open_stages, key=time_with_one_more)] += 1
    return tuple(layers)


def _most_layers(
    execution: ExecutionConfig, costs: Sequence[StageCosts], even: Sequence[int], kept: float
) -> list[int]:
    """The most layers by stage that leave room for the part `kept` of the even split's blocks, and
    for `LEAST_OF_MOST`. Those of the even split where no partition has any room."""
    num_layers, stages = sum(even), range(len(even))
    if not costs[0].kv_block_bytes:
        return [num_layers for _ in even]
    layout = execution.cache_layout
    planes, usable = layout.block_planes(range(num_layers)), layout.usable(execution.max_running)

    def blocks(stage: int, layers: int) -> int:
        """An estimate of those for which a stage has room, up to those that could be used."""
        own = -(-layers * planes // num_layers) * costs[stage].kv_block_bytes
        return min(_kv_budget(execution, costs, stage, layers) // own, usable)

    roomiest = _least_layers(execution, len(even))
    for _ in range(num_layers - sum(roomiest)):
        roomiest[max(stages, key=lambda stage: blocks(stage, roomiest[stage] + 1))] += 1
    of_even, most = (min(map(blocks, stages, layers)) for layers in (even, roomiest))
    if not most:
        return list(even)
    least = max(kept * of_even, LEAST_OF_MOST * most)
    return [
        max(n for n in range(1, num_layers + 1) if blocks(stage, n) >= least) for stage in stages
    ]


def _kv_budget(
    execution: ExecutionConfig, costs: Sequence[StageCosts], stage: int, layers: int
) -> int:
    """An estimate of a stage's bytes for KV cache beside so many layers."""
    if not execution.memory_shares:
        return execution.kv_cache_bytes
    cost = costs[stage]
    ends = [cost.embedding] * (stage == 0) + [cost.head] * (stage == len(costs) - 1)
    weights = layers * cost.layer.weight_bytes + sum(part.weight_bytes for part in ends)
    held = weights + execution.activation_bytes(stage) + OTHER_BYTES
    return max(0, execution.memory_shares[stage] - held)
