"""Masks reach the steps that they belong to, whatever comes between them."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from tests.workers.checkpoints import LLAMA, save_llama, worker_config
from tests.workers.stages import NUM_BLOCKS, Stages, sampled_tokens
from tests.workers.step_maker import StepMaker, encoder_step
from tests.workers.worker_group import WorkerGroup
from workers.contract.messages import AllocateKV, DecodeStep, GenerateOutput, StepMask, ToWorker
from workers.links.engine_link import EngineLink, StepInbox

VOCABULARY: int = LLAMA["vocab_size"]


class Core:
    """An engine core's socket and the inbox of the one stage that is connected to it."""

    def __init__(self, router: zmq.Socket[bytes], inbox: StepInbox) -> None:
        self._router, self.inbox = router, inbox

    def send(self, *messages: ToWorker) -> None:
        for message in messages:
            self._router.send_multipart([b"stage-0", msgspec.msgpack.encode(message)])


@pytest.fixture
def core() -> Iterator[Core]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    link = EngineLink(context, f"tcp://127.0.0.1:{port}", 0)
    link.send(AllocateKV(0))  # type: ignore[arg-type]
    router.recv_multipart()
    yield Core(router, StepInbox(link))
    context.destroy(0)


def step(number: int) -> DecodeStep:
    return DecodeStep(step=number, tokens=b"", query_lens=b"", slots=b"", starts=b"", sample=b"")


def test_later_steps_wait_in_order_while_a_mask_is_awaited(core: Core) -> None:
    core.send(step(4), step(5), step(6), StepMask(4, b"four"), step(7))
    assert core.inbox.next_step() == step(4)
    assert core.inbox.take_mask(4) == StepMask(4, b"four")
    assert [core.inbox.next_step().step for _ in range(3)] == [5, 6, 7]


def test_masks_are_found_by_their_step(core: Core) -> None:
    last = encoder_step([[5, 6]])  # steps of encoders come the same way
    core.send(step(0), step(1), StepMask(1, b"one"), StepMask(0, b"zero"), last)
    for number, bits in enumerate((b"zero", b"one")):
        assert core.inbox.next_step().step == number
        assert core.inbox.take_mask(number).bits == bits
    assert core.inbox.next_step() == last


def masked_steps(block_size: int) -> tuple[list[DecodeStep], dict[int, StepMask]]:
    """Two micro-batches by turns, each of a constrained and a free row, and then a free row alone;
    from the second turn on all steps are ahead. A mask allows 20 tokens of 211."""
    maker = StepMaker(block_size, NUM_BLOCKS)
    draw = np.random.default_rng(4)
    rows = [maker.admit(draw.integers(3, VOCABULARY, n).tolist(), seed=n) for n in (9, 4, 13, 1, 6)]
    batches = [rows[:2], rows[2:4], rows[4:]]
    newest = [-1, -1, -1]
    steps: list[DecodeStep] = []
    masks: dict[int, StepMask] = {}
    for turn in range(8 * len(batches)):
        batch = turn % len(batches)
        work = [(row, max(1, len(row.tokens) - row.submitted)) for row in batches[batch]]
        made = maker.step(work, after=newest[batch])
        newest[batch] = made.step
        if len(work) > 1:
            made = msgspec.structs.replace(made, masked=bytes([1, 0]))
            allowed = np.zeros(-(-VOCABULARY // 32) * 32, np.uint8)
            allowed[draw.choice(VOCABULARY, 20, replace=False)] = 1
            bits = np.packbits(allowed, bitorder="little").tobytes()
            masks[made.step] = StepMask(made.step, bits)
        steps.append(made)
    return steps, masks


def allows(mask: StepMask, token: int) -> bool:
    return bool(mask.bits[token // 8] >> token % 8 & 1)


@pytest.mark.parametrize(
    "num_stages", [2, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 3))]
)
def test_a_stage_that_waits_for_a_mask_takes_what_comes_meanwhile(
    tmp_path: Path, num_stages: int
) -> None:
    """All steps are submitted before the first mask; then the masks come, the newest first."""
    save_llama(tmp_path)
    one = Stages(tmp_path)
    steps, masks = masked_steps(one.block_size)
    expected = [sampled_tokens(one.run(step, masks.get(step.step))[1]).tolist() for step in steps]
    constrained = [expected[number][0] for number in masks]
    assert all(map(allows, masks.values(), constrained))
    # The control: by the mask of another step nine of ten would be another token.
    assert sum(map(allows, reversed(masks.values()), constrained)) < len(masks) / 2
    with WorkerGroup(worker_config(tmp_path), num_stages) as group:
        group.get_ready(NUM_BLOCKS)
        for step in steps:
            group.submit(step)
        if num_stages > 1:  # the first stage goes on to the first step that needs a token
            while (beat := group.beat()).last_finished_step != 2:
                assert beat.stage < num_stages - 1 or beat.last_finished_step == -1
        time.sleep(0.4)
        for number in sorted(masks, reverse=True):
            group.send(num_stages - 1, masks[number])
        outputs = [group.output() for _ in steps]
        # The last stage was waiting then, not busy.
        assert outputs[0].times.wait_us > 200_000
        for step, output, tokens in zip(steps, outputs, expected, strict=True):
            assert isinstance(output, GenerateOutput)
            assert (output.step, sampled_tokens(output).tolist()) == (step.step, tokens)
