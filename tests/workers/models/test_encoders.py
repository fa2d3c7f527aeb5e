"""States, scores and logits of encoders of every family against transformers in float32, or against
references of the tests where it has no class."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.models.encoders import ENCODERS, LIMIT
from tests.workers.models.tiny_models import TinyModel, TinyModels
from tests.workers.stages import EncoderStages, vectors_of
from tests.workers.step_maker import encoder_step
from workers.contract.checkpoint.architectures import family_of
from workers.contract.checkpoint.checkpoint_config import read_model_config

SPOILT = [(name, feature) for name, tiny in ENCODERS.items() for feature in tiny.spoilt]
SAME_DIRECTION = 0.99999
"""The least cosine of states or logits."""
CLOSE = {"embed": 1e-5, "classify": 1e-5, "embed_sparse": 2e-5}
"""The largest difference of a state, of a score, of a logit of a word."""


def texts_for(tiny: TinyModel) -> list[list[int]]:
    """Texts of which one is a token, others end about an edge, and one reaches the limit. No token
    is 0 or 1: transformers gives padding no position."""
    return tiny.texts(3, 17, 17, LIMIT, 1, 5, 44, first=2)


def segments_of(tiny: TinyModel, texts: list[list[int]]) -> list[list[int]]:
    """Two halves, or nothing where the model knows one segment."""
    if tiny.config.get("type_vocab_size", 1) == 1:
        return []
    return [[int(place >= len(text) // 2) for place in range(len(text))] for text in texts]


def expected_of(model: Any, tiny: TinyModel) -> list[torch.Tensor]:
    """transformers' results for each text alone: states, logits [tokens, N], or scores [1, N]."""
    texts = texts_for(tiny)
    segments = segments_of(tiny, texts)
    results: list[torch.Tensor] = []
    for row, text in enumerate(texts):
        types = {"token_type_ids": torch.tensor([segments[row]])} if segments else {}
        with torch.inference_mode():
            said = model(torch.tensor([text]), **types)
        results.append(said.last_hidden_state[0] if "logits" not in said else said.logits)
    results = [own.reshape(-1, own.shape[-1]) for own in results]
    assert torch.cat(results).std() > 0.1
    return results


def ours_of(
    folder: Path, tiny: TinyModel, num_stages: int = 1, backend: str = "auto"
) -> list[torch.Tensor]:
    task = family_of(read_model_config(folder).architecture).task
    stages = EncoderStages(folder, task=task, num_stages=num_stages, backend=backend)
    texts = texts_for(tiny)
    states, output = stages.compute(encoder_step(texts, segments_of(tiny, texts)))
    if task == "classify":
        return list(torch.from_numpy(vectors_of(output, len(texts)).copy()).split(1))
    if task == "embed_sparse":
        with torch.inference_mode():
            states = stages.runners[-1]._model.compute_logits(states)
    return list(states.split([len(text) for text in texts]))


def check_agrees(
    folder: Path, model: Any, tiny: TinyModel, backend: str = "auto"
) -> list[torch.Tensor]:
    ours, expected = ours_of(folder, tiny, backend=backend), expected_of(model, tiny)
    close = CLOSE[family_of(read_model_config(folder).architecture).task]
    for a, b in zip(ours, expected, strict=True):
        assert torch.cosine_similarity(a, b).min() >= SAME_DIRECTION
        torch.testing.assert_close(a, b, atol=close, rtol=0)
    return ours


def check_stages(folder: Path, name: str, num_stages: int, whole: list[torch.Tensor]) -> None:
    split = ours_of(folder, ENCODERS[name], num_stages)
    assert all(torch.equal(a, b) for a, b in zip(whole, split, strict=True))


@pytest.mark.parametrize("name", ENCODERS)
def test_transformers_agrees(tiny_models: TinyModels, name: str) -> None:
    folder, model = tiny_models(ENCODERS[name])
    assert read_model_config(folder).max_model_len == LIMIT
    check_stages(folder, name, 2, check_agrees(folder, model, ENCODERS[name]))


@pytest.mark.parametrize("name", ["deberta", "jina"])
def test_a_bias_by_distance_in_the_naive_backend(tiny_models: TinyModels, name: str) -> None:
    check_agrees(*tiny_models(ENCODERS[name]), ENCODERS[name], "naive")


@pytest.mark.parametrize("name", ["distilbert", "mpnet", "xlm_roberta"])
def test_a_model_without_segments_takes_no_notice_of_them(
    tiny_models: TinyModels, name: str
) -> None:
    """A tokenizer numbers them whatever the model knows."""
    folder, _ = tiny_models(ENCODERS[name])
    stages, text = EncoderStages(folder, task="embed"), [3, 5, 7, 11, 13]
    numbered = stages.run(encoder_step([text], [[0, 0, 0, 1, 1]]))
    assert numbered == stages.run(encoder_step([text]))


@pytest.mark.matrix
@pytest.mark.parametrize("num_stages", [3, 4])
@pytest.mark.parametrize("name", ENCODERS)
def test_stages_do_not_change_a_bit(tiny_models: TinyModels, name: str, num_stages: int) -> None:
    folder, _ = tiny_models(ENCODERS[name])
    check_stages(folder, name, num_stages, ours_of(folder, ENCODERS[name]))


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "feature"), SPOILT)
def test_a_spoilt_feature_is_noticed(
    tiny_models: TinyModels,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    feature: str,
    tmp_path: Path,
) -> None:
    tiny = ENCODERS[name]
    _, model = tiny_models(tiny)
    tiny_models.spoil(tiny, tiny.spoilt[feature], tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match=r"Tensor-likes are not close|cosine_similarity"):
        check_agrees(tmp_path, model, tiny)
