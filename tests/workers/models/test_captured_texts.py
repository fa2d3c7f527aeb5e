"""Steps of texts over static inputs give what they give without.

Capturing itself needs a GPU. Here a replay computes anew what would be captured.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest
import torch

from tests.workers.models.encoders import ENCODERS
from tests.workers.models.test_encoders import segments_of, texts_for
from tests.workers.models.tiny_models import TinyModels
from tests.workers.stages import EncoderStages
from tests.workers.step_maker import encoder_step, int32
from workers.attention.backends.naive import NaiveBackend
from workers.contract.checkpoint.architectures import family_of
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import PoolingConfig, PoolingMode
from workers.graphs import text_graphs
from workers.graphs.captured_step import FullGraph
from workers.graphs.text_graphs import TextGraphs
from workers.stage.model_runner import step_of_texts
from workers.step.packed_step import PackedStep

pytestmark = pytest.mark.usefixtures("pinned_anywhere")

FAMILIES = """bert bert_label bert_words xlm_roberta xlm_roberta_label mpnet albert electra
embedding_gemma llama qwen2_windows ministral3 modernbert modernbert_labels eurobert_late
eurobert_bos deberta gte_segments jina nomicbert distilbert_label""".split()
SIZES = TextGraphs().sizes() | {"of_4": [32, 64, 384]}


class Pool:
    """Captures nothing."""

    capturing = nullcontext

    def begin(self) -> SimpleNamespace:
        return SimpleNamespace(capture_end=lambda: None)


@pytest.fixture(autouse=True)
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the steps that are replayed. Attention reads lengths where the device would, and
    each token of no row is a row more."""
    sizes: list[int] = []

    def replay(graph: Any) -> None:
        sizes.append(graph.inputs.size)
        graph._result.copy_(graph._compute())

    def plan(backend: NaiveBackend, step: PackedStep, bias: torch.Tensor | None = None) -> Any:
        lens = step.query_starts.diff().tolist()
        lens += [1] * (step.num_tokens - sum(lens))
        return lens, lens, bias

    monkeypatch.setattr(NaiveBackend, "plan_packed", plan)
    monkeypatch.setattr(text_graphs, "GraphPool", Pool)
    monkeypatch.setattr(FullGraph, "replay", replay)
    return sizes


def capture(stages: EncoderStages) -> None:
    with torch.inference_mode():
        for runner in stages.runners:
            runner.capture(SIZES)


def check_replays(
    stages: EncoderStages, steps: list[Any], replays: list[int], taken: list[int]
) -> None:
    """The steps' results do not change by a bit, behind a step that leaves other inputs behind."""
    expected = [stages.run(step) for step in steps]
    capture(stages)
    stages.run(encoder_step([[7] * 64] * 6, [[1] * 64] * 6))
    replays.clear()
    assert [stages.run(step) for step in steps] == expected
    assert replays == [size for size in taken for _ in stages.runners]


@pytest.mark.parametrize(
    ("name", "num_stages"),
    [(name, 1) for name in FAMILIES]
    + [("bert", 2), ("eurobert_late", 2)]
    + [pytest.param(name, 3, marks=pytest.mark.matrix) for name in ENCODERS],
)
def test_padding_does_not_change_a_bit(
    tiny_models: TinyModels, replays: list[int], name: str, num_stages: int
) -> None:
    tiny = ENCODERS[name]
    folder, _ = tiny_models(tiny)
    task = family_of(tiny.architecture).task
    stages = EncoderStages(folder, task=task, num_stages=num_stages, backend="naive")
    texts = texts_for(tiny)
    steps = [encoder_step(texts, segments_of(tiny, texts)), encoder_step(texts[-2:])]
    check_replays(stages, steps, replays, [384, 64])


@pytest.mark.parametrize("mode", get_args(PoolingMode))
def test_poolings_and_prompts(
    tiny_models: TinyModels, replays: list[int], mode: PoolingMode
) -> None:
    """With states of tokens, a step that ends with single tokens is launched kernel by kernel."""
    folder, _ = tiny_models(ENCODERS["bert"])
    pooling = PoolingConfig(modes=(mode,))
    model = msgspec.structs.replace(read_model_config(folder), pooling=pooling)
    stages = EncoderStages(folder, task="embed", backend="naive", model=model)
    plain = encoder_step([[5, 6, 7], [8, 9], [4, 4, 4, 4]])
    prompted = msgspec.structs.replace(plain, unpooled_lens=int32([1, 1, 2]))
    with_states = msgspec.structs.replace(plain, requested={"states": b"\1\0\1"})
    alone = mode in ("cls", "lasttoken")
    taken = [32, 32] if alone else [32, 32, 32]
    check_replays(stages, [plain, prompted, with_states], replays, taken)


def test_a_step_without_room_is_launched(tiny_models: TinyModels, replays: list[int]) -> None:
    folder, _ = tiny_models(ENCODERS["bert"])
    stages = EncoderStages(folder, task="embed", backend="naive")
    steps = [step_of_texts([65] * 6), step_of_texts([1] * 97)]
    check_replays(stages, steps, replays, [])
