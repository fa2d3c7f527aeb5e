"""Checkpoints of encoders with earlier names, with tensors of other heads, and with a head although
their states are pooled."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.server.checkpoint_folders import write_modules
from tests.workers.models.encoders import ENCODERS, LIMIT
from tests.workers.models.test_encoders import check_agrees, texts_for
from tests.workers.models.tiny_models import TinyModels
from tests.workers.stages import EncoderStages
from tests.workers.step_maker import encoder_step
from workers.contract.checkpoint.checkpoint_config import read_model_config

Tensors = dict[str, torch.Tensor]

SIZE = ENCODERS["bert"].config["hidden_size"]
BIAS, DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"


def older(tensors: Tensors) -> Tensors:
    renamed = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for now, then in renamed.items():
        tensors = {name.replace(now, then): tensor for name, tensor in tensors.items()}
    return tensors


def encoder_of_a_masked_lm(tensors: Tensors) -> Tensors:
    encoder = {f"bert.{name}": tensor for name, tensor in older(tensors).items()}
    assert "bert.encoder.layer.0.output.LayerNorm.gamma" in encoder
    positions = {"bert.embeddings.position_ids": torch.arange(LIMIT)}
    return encoder | positions | {"cls.predictions.transform.LayerNorm.gamma": torch.ones(SIZE)}


def with_other_heads(tensors: Tensors) -> Tensors:
    tensors = older(tensors)
    assert "cls.predictions.transform.LayerNorm.gamma" in tensors
    heads = {"cls.seq_relationship.bias": torch.ones(2)}
    return tensors | heads | {"bert.pooler.dense.bias": torch.ones(SIZE)}


def with_a_decoder_bias(tensors: Tensors) -> Tensors:
    """The decoder's own bias in place of the other, which is the same tensor."""
    return {DECODER_BIAS if name == BIAS else name: tensor for name, tensor in tensors.items()}


def with_both_biases(tensors: Tensors) -> Tensors:
    """The decoder's own counts."""
    return with_a_decoder_bias(tensors) | {BIAS: torch.full_like(tensors[BIAS], torch.nan)}


def with_an_unused_pooler(tensors: Tensors) -> Tensors:
    """A pooler beside the classifier that is in its place, and a buffer of positions."""
    pooler = {"weight": torch.full((SIZE, SIZE), torch.nan), "bias": torch.full((SIZE,), torch.nan)}
    unused = {f"roberta.pooler.dense.{name}": tensor for name, tensor in pooler.items()}
    return tensors | unused | {"roberta.embeddings.position_ids": torch.arange(LIMIT + 2)}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bert", encoder_of_a_masked_lm),
        ("bert_words", with_other_heads),
        ("bert_words", with_a_decoder_bias),
        ("bert_words", with_both_biases),
        ("roberta_labels", with_an_unused_pooler),
    ],
)
def test_tensors_as_others_have_saved_them(
    tiny_models: TinyModels, tmp_path: Path, name: str, change: Callable[[Tensors], Tensors]
) -> None:
    folder, model = tiny_models(ENCODERS[name])
    shutil.copy(folder / "config.json", tmp_path)
    save_file(change(load_file(folder / "model.safetensors")), tmp_path / "model.safetensors")
    check_agrees(tmp_path, model, ENCODERS[name])


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet"])
def test_an_embedder_saved_as_a_masked_language_model(
    tiny_models: TinyModels, tmp_path: Path, name: str
) -> None:
    """As all-mpnet-base-v2 and all-distilroberta-v1: the head is left."""
    tiny = ENCODERS[f"{name}_words"]
    folder, model = tiny_models(tiny)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    write_modules(tmp_path, Pooling={"pooling_mode_mean_tokens": True}, Normalize={})
    base = tiny.architecture.removesuffix("ForMaskedLM")
    assert read_model_config(tmp_path).architecture == f"{base}Model"
    texts = texts_for(tiny)
    states, _ = EncoderStages(tmp_path, task="embed", num_stages=2).compute(encoder_step(texts))
    for text, own in zip(texts, states.split([len(text) for text in texts]), strict=True):
        with torch.inference_mode():
            expected: Any = model.base_model(torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "prefix", "others"),
    [
        ("electra", "electra.", ["discriminator_predictions.dense.bias", "generator_lm_head.bias"]),
        ("albert", "albert.", ["predictions.bias", "sop_classifier.classifier.bias"]),
        ("deberta", "deberta.", ["lm_predictions.lm_head.bias", "mask_predictions.dense.bias"]),
        ("eurobert", "model.", ["lm_head.weight", "classifier.bias"]),
        ("gte", "new.", ["classifier.bias", "lm_head.decoder.bias"]),
        ("jina", "bert.", ["cls.predictions.bias", "pooler.dense.bias"]),
    ],
)
def test_an_encoder_beside_the_heads_of_its_training(
    tiny_models: TinyModels, tmp_path: Path, name: str, prefix: str, others: list[str]
) -> None:
    """As gte-multilingual-base and deberta-v3-base: their heads are left."""
    folder, model = tiny_models(ENCODERS[name])
    shutil.copy(folder / "config.json", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    heads = {other: torch.full((SIZE,), torch.nan) for other in others}
    prefixed = {f"{prefix}{own}": tensor for own, tensor in tensors.items()}
    save_file(prefixed | heads, tmp_path / "model.safetensors")
    check_agrees(tmp_path, model, ENCODERS[name])
