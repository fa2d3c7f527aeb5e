"""Real worker processes in a row give what one stage gives, bit by bit, and fail as one."""

import random
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.patience import PATIENCE
from tests.workers.checkpoints import LLAMA, save_bert, with_execution, worker_config
from tests.workers.intruders import INTRUDERS
from tests.workers.stages import NUM_BLOCKS, EncoderStages, Stages, sampled_tokens
from tests.workers.step_maker import StepMaker, encoder_step
from tests.workers.worker_group import KEYS, WorkerGroup
from workers.contract.config import Task, WorkerConfig
from workers.contract.messages import DecodeStep, StageReport, StepMask, StepOutput, StepTimes

NEW_TOKENS = 10


def naive_config(folder: Path, task: Task = "generate") -> WorkerConfig:
    config = worker_config(folder, task=task)
    return with_execution(config, attention_backend="naive")


def decoder_steps(block_size: int) -> tuple[list[DecodeStep], dict[int, StepMask]]:
    """Two micro-batches of two rows by turns: chunks of prompts, then only steps ahead.

    Whenever the first row samples, its step has a mask, which allows 20 tokens of 211.
    """
    maker = StepMaker(block_size, NUM_BLOCKS)
    numbers = random.Random(3)
    prompts = [[numbers.randrange(3, LLAMA["vocab_size"]) for _ in range(n)] for n in (21, 6, 9, 2)]
    rows = [
        maker.admit(prompt, temperature=temperature, seed=8, top_k=40, logprobs=5)
        for prompt, temperature in zip(prompts, (0.0, 1.0, 0.6, 1.4), strict=True)
    ]
    halves = [rows[:2], rows[2:]]
    steps = [maker.step([(row, 2) for row in half], score=True) for half in halves]
    newest = [-1, 1]  # step 1 holds a whole prompt, of two tokens, and samples
    masks: dict[int, StepMask] = {}
    for turn in range(2 * (NEW_TOKENS + 1)):
        half = halves[turn % 2]
        work = [(row, max(1, len(row.tokens) - row.submitted)) for row in half]
        step = maker.step(work, after=newest[turn % 2])
        newest[turn % 2] = step.step
        if half is halves[0]:
            step = msgspec.structs.replace(step, masked=bytes([1, 0]))
            allowed = np.zeros(-(-LLAMA["vocab_size"] // 32) * 32, np.uint8)
            allowed[numbers.sample(range(LLAMA["vocab_size"]), 20)] = 1
            bits = np.packbits(allowed, bitorder="little").tobytes()
            masks[step.step] = StepMask(step.step, bits)
        steps.append(step)
    return steps, masks


def allows(mask: StepMask, token: int) -> bool:
    return bool(mask.bits[token // 8] >> token % 8 & 1)


@pytest.mark.parametrize(
    "stage_layers",
    [
        (1, 2, 1),
        *(
            pytest.param(layers, marks=pytest.mark.long)
            for layers in [(2, 2), (1, 1, 1, 1), (3, 1), (1, 3)]
        ),
    ],
)
def test_generation_is_the_same_over_any_processes(
    llama: Path, stage_layers: tuple[int, ...]
) -> None:
    """All steps are submitted before the first mask. Then the masks come, the newest first."""
    one = Stages(llama, backend="naive")
    steps, masks = decoder_steps(one.block_size)
    expected = [one.run(step, masks.get(step.step)) for step in steps]
    assert len({output.tokens for output in expected}) > len(steps) // 2
    constrained = [int(sampled_tokens(expected[number])[0]) for number in masks]
    assert all(map(allows, masks.values(), constrained))
    # The control: by the mask of another step nine of ten would be another token.
    assert sum(map(allows, reversed(masks.values()), constrained)) < len(masks) / 2
    num_stages = len(stage_layers)
    own = with_execution(naive_config(llama), stage_layers=stage_layers)
    with WorkerGroup(own, num_stages) as group:
        loaded = group.get_ready(NUM_BLOCKS)
        config = own.execution
        of_one_layer = 2 * config.block_size * 2 * 16 * 4
        assert [stage.kv_block_bytes for stage in loaded] == [
            of_one_layer * layers for layers in stage_layers
        ]
        assert [stage.kv_budget_bytes for stage in loaded] == [config.kv_cache_bytes] * num_stages
        for step in steps:
            group.submit(step)
        outputs = [group.output() for _ in steps[:2]]  # the others wait for the mask of step 2
        # The first stage goes on to the first step that needs a masked token.
        while (beat := group.beat()).stage != 0 or beat.last_finished_step < 3:
            assert beat.stage < num_stages - 1 or beat.last_finished_step < 2
        time.sleep(0.4)
        for number in sorted(masks, reverse=True):
            group.send(num_stages - 1, masks[number])
        outputs += [group.output() for _ in steps[2:]]
        # The last stage was waiting then, not busy.
        assert outputs[2].times.wait_us > 200_000
        assert [without_time(output) for output in outputs] == expected
        while len(group.reports) < (num_stages - 1) * len(steps):
            group.beat()
    by_stage = [[r for r in group.reports if r.stage == stage] for stage in range(num_stages - 1)]
    check_times(steps, [*by_stage, outputs])


@pytest.mark.parametrize(
    "nodes", [(0, 0, 1), pytest.param((0, 1, 1, 2), marks=pytest.mark.long)], ids=str
)
def test_generation_is_the_same_over_several_hosts_whatever_comes_to_their_ports(
    llama: Path, nodes: tuple[int, ...]
) -> None:
    one = Stages(llama, backend="naive")
    steps, masks = decoder_steps(one.block_size)
    expected = [one.run(step, masks.get(step.step)) for step in steps]
    with WorkerGroup(naive_config(llama), len(nodes), nodes) as group:
        group.get_ready(NUM_BLOCKS)
        half = len(steps) // 2
        for step in steps[:half]:
            group.submit(step)
        for endpoint in group.endpoints:
            for intrude in INTRUDERS.values():
                intrude(endpoint, KEYS)
        for step in steps[half:]:
            group.submit(step)
        for mask in masks.values():
            group.send(len(nodes) - 1, mask)
        assert [without_time(group.output()) for _ in steps] == expected
        (line,) = [line for line in group.log(0) if "has refused" in line]
        assert f": connections that {group.endpoints[1]} has refused since its start: 1" in line


def check_times(
    steps: list[DecodeStep], by_stage: Sequence[Sequence[StageReport | StepOutput]]
) -> None:
    """Each stage has reported when it had its part of each step."""
    numbers = [step.step for step in steps]
    for reports in by_stage:
        assert [report.step for report in reports] == numbers
    times = [[report.times for report in reports] for reports in by_stage]
    for of_stage in times:
        assert all(before.end_us <= after.start_us for before, after in pairwise(of_stage))
        assert all(t.busy_us > 0 and t.wait_us >= 0 and t.transfer_us >= 0 for t in of_stage)
    for of_stage, of_next in pairwise(times):
        for before, after in zip(of_stage, of_next, strict=True):
            assert computed_us(before) <= after.start_us + after.wait_us <= computed_us(after)


@pytest.mark.parametrize("stage_layers", [(2, 2), pytest.param((1, 3), marks=pytest.mark.long)])
def test_vectors_are_the_same_over_two_processes(
    tmp_path: Path, stage_layers: tuple[int, ...]
) -> None:
    save_bert(tmp_path)
    steps = [encoder_step([[5] * 17, [6, 7, 8]]), encoder_step([[9]])]
    one = EncoderStages(tmp_path, task="embed", backend="naive")
    expected = [one.run(step) for step in steps]
    own = with_execution(naive_config(tmp_path, "embed"), stage_layers=stage_layers)
    with WorkerGroup(own, 2) as group:
        loaded = group.get_ready(0)
        assert [(stage.kv_block_bytes, stage.kv_budget_bytes) for stage in loaded] == [(0, 0)] * 2
        for step in steps:
            group.submit(step)
        assert [without_time(group.output()) for _ in steps] == expected


def test_a_dead_stage_ends_its_neighbours_with_one_line_each(llama: Path) -> None:
    step = decoder_steps(4)[0][0]
    with WorkerGroup(naive_config(llama), 3) as group:
        group.get_ready(NUM_BLOCKS)
        group.kill(1)
        group.send(0, step)
        group.send(2, step)
        said = {failure.stage: failure for failure in (group.failure(), group.failure())}
        for stage, words in ((0, "nothing reaches stage 1: "), (2, "nothing comes from stage 1: ")):
            assert said[stage].message.startswith(words)
            assert said[stage].neighbour_lost
            assert "\n" not in said[stage].message
        for stage in (0, 2):
            assert group.processes[stage].wait(timeout=PATIENCE) == 1
            _, line = group.log(stage)
            assert f" ERROR   worker {stage} of tiny: {said[stage].message}" in line


def computed_us(times: StepTimes) -> int:
    return times.end_us - times.transfer_us


def without_time(output: StepOutput) -> StepOutput:
    assert output.times.busy_us > 0
    return msgspec.structs.replace(output, times=StepTimes())
