"""Decoders of every family against transformers in float32, teacher-forced.

Prompts have one token, end about the edges of windows, or reach the limit. They are answered beside
others, with and without cached prefixes, in stages.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.equivalence import WAYS, Lesson, check_prefix_cache, check_way
from tests.workers.inline_engine import Way
from tests.workers.models import decoders
from tests.workers.models.decoders import LIMIT
from tests.workers.models.expert_decoders import EXPERT_DECODERS
from tests.workers.models.gemma4_decoders import GEMMA4_DECODERS
from tests.workers.models.later_decoders import LATER_DECODERS
from tests.workers.models.tiny_models import TinyModel, TinyModels
from tests.workers.teacher import Reference
from workers.contract.checkpoint.checkpoint_config import read_model_config

TOKENS = 8
DECODERS = decoders.DECODERS | LATER_DECODERS | EXPERT_DECODERS | GEMMA4_DECODERS
SPOILT = [(name, feature) for name, tiny in DECODERS.items() for feature in tiny.spoilt]


def taught(models: TinyModels, tiny: TinyModel) -> Lesson:
    folder, model = models(tiny)
    prompts = tiny.texts(1, 15, 16, 17, 33, LIMIT - TOKENS, first=6)
    return Lesson(folder, prompts, [continuation(model, prompt) for prompt in prompts])


@torch.inference_mode()
def continuation(model: Any, prompt: list[int]) -> Reference:
    tokens, seen = list(prompt), []
    while len(seen) < TOKENS:
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        assert logits.std() >= 1
        seen.append(logits.log_softmax(-1).numpy())
        tokens.append(int(logits.argmax()))
    return Reference(tokens[len(prompt) :], np.stack(seen))


@pytest.mark.parametrize("name", DECODERS)
def test_transformers_agrees(tiny_models: TinyModels, name: str) -> None:
    lesson = taught(tiny_models, DECODERS[name])
    assert read_model_config(lesson.folder).max_model_len == LIMIT
    check_prefix_cache(lesson, Way())
    check_way(lesson, Way(stages=3, depth=4, max_step_tokens=40))


@pytest.mark.matrix
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DECODERS)
def test_no_way_changes_the_text(tiny_models: TinyModels, name: str, way: str, stages: int) -> None:
    lesson = taught(tiny_models, DECODERS[name])
    check_way(lesson, replace(WAYS[way], stages=stages))


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "feature"), SPOILT)
def test_a_spoilt_feature_is_noticed(
    tiny_models: TinyModels,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    feature: str,
    tmp_path: Path,
) -> None:
    tiny = DECODERS[name]
    lesson = taught(tiny_models, tiny)
    tiny_models.spoil(tiny, tiny.spoilt[feature], tmp_path, monkeypatch)
    _, comparison = Lesson(tmp_path, lesson.prompts, lesson.references).run(Way())
    with pytest.raises(AssertionError, match="log-probabilities within"):
        comparison.check()
