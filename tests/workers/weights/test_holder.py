"""Weights that a process keeps, and from which stage after stage is made."""

import multiprocessing
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

from tests.workers.checkpoints import (
    load_share,
    save_llama,
    share_of,
    with_execution,
    worker_config,
)
from tests.workers.models.decoders import DECODERS
from tests.workers.models.encoders import ENCODERS
from tests.workers.models.expert_decoders import EXPERT_DECODERS
from tests.workers.models.tiny_models import TinyModel
from tests.workers.stages import NUM_BLOCKS, Stages
from tests.workers.step_maker import StepMaker
from workers.attention.base import AttentionBackend
from workers.contract.config import Task, WorkerConfig
from workers.contract.model_config import ModelConfigError
from workers.stage.decode_runner import DecodeRunner
from workers.weights.held import Held, ask_for_weights
from workers.weights.holder import Holder, serve
from workers.weights.loader import filled_model, load_model

FILE = "model.safetensors"


@contextmanager
def holding(worker: WorkerConfig) -> Generator[Callable[[], Held | None]]:
    """A process that keeps a stage's weights, and the way to ask it for them."""
    # What is not a child of this process would have to be told a key to share memory on a CPU.
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(worker,))
    process.start()
    context: zmq.Context[Any] = zmq.Context()
    try:
        yield lambda: ask_for_weights(worker, share_of(worker), context)
    finally:
        context.destroy(0)
        process.kill()
        process.join()


class HeldStages(Stages):
    """A model of held weights."""

    def __init__(self, folder: Path, held: Held) -> None:
        self.held = held
        super().__init__(folder)

    def _runner(self, config: WorkerConfig, backends: list[AttentionBackend]) -> DecodeRunner:
        loaded = load_model(config, share_of(config), self.held)
        return DecodeRunner(config, loaded, backends, NUM_BLOCKS)


def test_stage_after_stage_maps_what_was_loaded_once(tmp_path: Path) -> None:
    """Of Gemma, whose norms' weights are adjusted once they are read."""
    DECODERS["gemma3"].save(tmp_path)
    maker = StepMaker(4, NUM_BLOCKS)
    row = maker.admit([5, 6, 7, 8, 9])
    steps = [maker.step([(row, 5)]), maker.step([(row, 1)], after=0)]
    stages = Stages(tmp_path)
    expected = [stages.run(step).tokens for step in steps]
    worker = with_execution(worker_config(tmp_path), start=str(tmp_path / "0"))
    with holding(worker) as ask:
        first = ask()
        assert first is not None
        assert first.seconds > 0
        assert all(tensor.is_shared() for tensor in first.tensors)
        mapped = HeldStages(tmp_path, first)
        assert [mapped.run(step).tokens for step in steps] == expected
        # What one does to the memory the next one sees: nothing was copied.
        (tmp_path / FILE).unlink()
        again = ask()
        assert again is not None
        assert again.seconds == 0
        first.tensors[0].zero_()
        assert not again.tensors[0].any()


def test_a_holder_of_what_cannot_be_loaded_leaves_it_to_the_stage_to_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_llama(tmp_path)
    (tmp_path / FILE).write_bytes(b"")
    worker = worker_config(tmp_path)
    assert Holder(worker).answer(share_of(worker)) == b""
    (line,) = caplog.messages
    assert line.startswith("keeps no weights, and the stage loads its own: ")
    with pytest.raises(ModelConfigError, match=FILE):
        load_share(worker)


@pytest.mark.parametrize(
    ("tiny", "task"),
    [
        (DECODERS["gemma3"], "generate"),
        (EXPERT_DECODERS["qwen2_moe"], "generate"),
        (ENCODERS["modernbert"], "embed"),
        (ENCODERS["deberta"], "embed"),
    ],
)
def test_packing_leaves_weights_as_they_are(tmp_path: Path, tiny: TinyModel, task: Task) -> None:
    """Another process may pack them again."""
    tiny.save(tmp_path)
    worker = worker_config(tmp_path, task=task)
    model = filled_model(worker, share_of(worker), torch.empty)
    weights = model.weights()
    before = {name: weight.clone() for name, weight in weights.items()}
    model.pack()
    assert [name for name, own in before.items() if not own.equal(weights[name])] == []
