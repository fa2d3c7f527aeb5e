"""SPLADE pooling of a masked language model's logits against sentence-transformers in float32."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sparse_encoder.modules import SpladePooling

from tests.workers.checkpoints import random_texts, save_masked_lm
from tests.workers.stages import EncoderStages, dense
from tests.workers.step_maker import encoder_step
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.messages import EmbedSparseOutput
from workers.contract.model_config import ModelConfigError, SpladeConfig
from workers.heads import encoder_head
from workers.heads.encoder_head import sparse_vectors

TASK = "embed_sparse"
TEXTS = random_texts(3, 17, 1, 60, 5, 44)


def write_modules(folder: Path, *kinds: str, **pooling: Any) -> None:
    """The files that sentence-transformers writes beside a model."""
    modules = [
        {"path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    if kinds[:2] == ("Transformer", "SpladePooling"):
        (folder / "sentence_bert_config.json").write_text('{"transformer_task": "fill-mask"}')
    for module in modules[1:]:
        own = folder / module["path"]
        own.mkdir(exist_ok=True)
        (own / "config.json").write_text(json.dumps(pooling))


@torch.inference_mode()
def reference(model: Any, strategy: Any = "max", activation: Any = "relu") -> np.ndarray:
    """sentence-transformers' vectors, float32[R, V]."""
    pooling = SpladePooling(strategy, activation).eval()
    logits = [model(torch.tensor([text])).logits for text in TEXTS]
    rows = [
        pooling({"token_embeddings": own, "attention_mask": torch.ones(1, own.shape[1])})
        for own in logits
    ]
    return torch.cat([row["sentence_embedding"] for row in rows]).numpy()


@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("at_once", [512, 20])
def test_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy, activation, at_once
) -> None:
    """Also where rows are pooled piece by piece."""
    monkeypatch.setattr(encoder_head, "TOKENS_AT_ONCE", at_once)
    model = save_masked_lm(tmp_path, bias=-1.0)
    pooling = {"pooling_strategy": strategy, "activation_function": activation}
    write_modules(tmp_path, "Transformer", "SpladePooling", **pooling, embedding_dimension=None)
    output = EncoderStages(tmp_path, task=TASK).run(encoder_step(TEXTS))
    expected = reference(model, strategy, activation)
    assert 0.1 < (expected == 0).mean() < 0.9
    np.testing.assert_allclose(dense(output), expected, atol=1e-4 if strategy == "sum" else 1e-5)


def test_a_folder_that_sentence_transformers_wrote(tmp_path: Path) -> None:
    model = save_masked_lm(tmp_path)
    write_modules(tmp_path, "MLMTransformer", "SpladePooling")
    SpladePooling("sum").save(str(tmp_path / "1_SpladePooling"))
    output = EncoderStages(tmp_path, task=TASK).run(encoder_step(TEXTS))
    np.testing.assert_allclose(dense(output), reference(model, "sum"), atol=1e-4)


def test_a_text_that_says_nothing(tmp_path: Path) -> None:
    save_masked_lm(tmp_path, bias=-100.0)
    output = EncoderStages(tmp_path, task=TASK).run(encoder_step(TEXTS))
    assert isinstance(output, EmbedSparseOutput)
    assert np.frombuffer(output.counts, np.int32).tolist() == [0] * len(TEXTS)
    assert output.entries == b""


@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_nan_stays_in_its_row(strategy) -> None:
    states = torch.zeros(9, 1)
    states[4] = torch.nan
    lens, config = [3, 4, 2], SpladeConfig(strategy=strategy)
    vectors = sparse_vectors(states, lens, lambda rows: rows.expand(-1, 6) + 1, config)
    per_row = vectors.entries[:, 1].split(vectors.counts.tolist())
    assert [bool(row.isnan().any()) for row in per_row] == [False, True, False]


@pytest.mark.parametrize("lens", [[1], [40], [1] * 40, [3, 3, 3], [7, 1, 90, 2], [8, 8, 1]])
def test_no_more_logits_than_fit_are_held(monkeypatch: pytest.MonkeyPatch, lens) -> None:
    monkeypatch.setattr(encoder_head, "TOKENS_AT_ONCE", 8)
    asked: list[int] = []

    def logits(rows: torch.Tensor) -> torch.Tensor:
        asked.append(len(rows))
        return rows.expand(-1, 3)

    numbers = torch.arange(1.0, sum(lens) + 1)[:, None]
    padded = torch.cat([numbers, torch.full((4, 1), 1e6)])
    vectors = sparse_vectors(padded, lens, logits, SpladeConfig())
    assert max(asked) <= 8
    assert sum(asked) == sum(lens)
    assert vectors.counts.tolist() == [3] * len(lens)
    expected = np.log1p(np.cumsum(lens)).repeat(3)
    np.testing.assert_allclose(vectors.entries[:, 1].numpy(), expected, rtol=1e-6)


def test_pooling_of_a_folder_without_modules(tmp_path: Path) -> None:
    save_masked_lm(tmp_path)
    assert read_model_config(tmp_path).splade == SpladeConfig(strategy="max", activation="relu")


@pytest.mark.parametrize(
    ("kinds", "pooling", "named"),
    [
        (["Transformer", "SpladePooling"], {"pooling_strategy": "mean"}, "pooling_strategy"),
        (["Transformer", "SpladePooling"], {"activation_function": "gelu"}, "activation_function"),
        (["Transformer", "SpladePooling"], {"pooling_strategy": 3}, "pooling_strategy"),
        (["Transformer", "SpladePooling", "Normalize"], {}, "Normalize are not supported"),
        (["Router"], {}, "Router are not supported"),
        (["MLMTransformer", "Pooling"], {}, 'transformer_task "fill-mask" is not supported'),
        (["Transformer"], {}, r"Transformer are not supported \(first"),
        (["Transformer", "SpladePooling"], None, r"config\.json is missing"),
    ],
)
def test_what_cannot_be_pooled_is_named(tmp_path: Path, kinds, pooling, named) -> None:
    save_masked_lm(tmp_path)
    write_modules(tmp_path, *kinds, **pooling or {})
    if pooling is None:
        (tmp_path / "1_SpladePooling" / "config.json").unlink()
    with pytest.raises(ModelConfigError, match=named):
        read_model_config(tmp_path)
