"""Keys that families read in their own ways: activations, windows, rotation, earlier forms."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import NomicBertConfig

from tests.workers.contract.checkpoint.config_files import (
    LENGTH,
    PUBLISHED,
    SIZES,
    YARN,
    read,
    refusal,
)
from workers.contract.checkpoint.architectures import FAMILIES
from workers.contract.model_config import LongScaling, RopeConfig

ACTIVATION_KEYS = {
    "DistilBert": ["activation"],
    "Gemma2": ["hidden_activation"],
    "Gemma3": ["hidden_activation"],
    "Gemma4": ["hidden_activation"],
    "Gemma4Unified": ["hidden_activation"],
    "ModernBert": ["hidden_activation", "classifier_activation"],
}
"""Names of the key in families that do not call it `hidden_act`."""
NEEDED: dict[str, dict[str, Any]] = {
    "JinaBert": {"feed_forward_type": "geglu", "position_embedding_type": "alibi"},
    "DebertaV2": {
        "relative_attention": True,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": "c2p|p2c",
    },
}
"""Keys that a family cannot do without."""
ARCHITECTURES = {family.name: name for name, family in FAMILIES.items()} | {
    "Gemma3": "Gemma3ForCausalLM"
}


@pytest.mark.parametrize(
    ("family", "key"),
    [(name, key) for name in ARCHITECTURES for key in ACTIVATION_KEYS.get(name, ["hidden_act"])],
)
def test_an_unknown_activation_is_refused_with_those_that_are_known(
    tmp_path: Path, family: str, key: str
) -> None:
    config = SIZES | {"architectures": [ARCHITECTURES[family]]} | NEEDED.get(family, {})
    assert read(tmp_path, config).num_layers == 2
    known = "silu, relu, relu2, tanh, gelu, gelu_new, gelu_pytorch_tanh"
    message = f"{key} 'xielu' is not supported (one of {known})"
    assert refusal(tmp_path, config | {key: "xielu"}) == message


# A window counts where it hides a token of some text.

CAUSAL: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {},
    "Phi3ForCausalLM": {},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "max_window_layers": 1},
    "Qwen3ForCausalLM": {"use_sliding_window": True, "max_window_layers": 1},
    "Gemma2ForCausalLM": {},
    "Gemma3ForCausalLM": {},
    "SmolLM3ForCausalLM": {"use_sliding_window": True, "no_rope_layers": [1, 0]},
    "SmolLM3Model": {"layer_types": ["sliding_attention", "full_attention"]},
    "Olmo3ForCausalLM": {},
    "Exaone4ForCausalLM": {},
}
BIDIRECTIONAL: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma3TextModel": ("sliding_window", {"use_bidirectional_attention": True}),
    "ModernBertModel": ("local_attention", {}),
}


def windows(folder: Path, config: dict[str, Any]) -> set[int | None]:
    """The windows of all layers."""
    model = read(folder, config)
    return {model.attention[kind].window for kind in model.layer_kinds}


@pytest.mark.parametrize("architecture", CAUSAL)
def test_a_window_before_a_token(tmp_path: Path, architecture: str) -> None:
    """The last token is LENGTH - 1 behind the first."""
    config = SIZES | {"architectures": [architecture]} | CAUSAL[architecture]
    assert LENGTH - 1 in windows(tmp_path, config | {"sliding_window": LENGTH - 1})
    for window in (LENGTH, LENGTH + 1, 2**40):
        assert windows(tmp_path, config | {"sliding_window": window}) == {None}
    message = "sliding_window 0 is less than 1"
    assert refusal(tmp_path, config | {"sliding_window": 0}) == message


@pytest.mark.parametrize("architecture", BIDIRECTIONAL)
def test_a_window_on_both_sides(tmp_path: Path, architecture: str) -> None:
    key, others = BIDIRECTIONAL[architecture]
    layers = {"layer_types": ["full_attention", "sliding_attention"]}
    config = SIZES | {"architectures": [architecture]} | others | layers
    assert LENGTH - 1 in windows(tmp_path, config | {key: 2 * (LENGTH - 2)})
    assert windows(tmp_path, config | {key: 2 * (LENGTH - 1)}) == {None}
    assert refusal(tmp_path, config | {key: 0}) == f"{key} 0 is less than 1"


def test_a_window_in_a_length_that_yarn_extends(tmp_path: Path) -> None:
    rope = YARN | {"original_max_position_embeddings": LENGTH}
    config = SIZES | {"architectures": ["MistralForCausalLM"], "rope_parameters": rope}
    found = [
        windows(tmp_path, config | {"sliding_window": window})
        for window in (LENGTH, 4 * LENGTH - 1, 4 * LENGTH)
    ]
    assert found == [{LENGTH}, {4 * LENGTH - 1}, {None}]


# Phi-3 and Phi-4: rotation of a part of each head, factors by length.


def phi_rope(folder: Path, name: str, **changes: Any) -> RopeConfig:
    (kind,) = read(folder, PUBLISHED[f"microsoft/{name}"] | changes).attention
    assert kind.rope is not None
    return kind.rope


@pytest.mark.parametrize(
    ("name", "head_dim", "window", "rotated"),
    [
        ("Phi-3-mini-4k-instruct", 96, 2047, 96),
        ("Phi-3.5-mini-instruct", 96, None, 96),  # a window of 262,144 tokens, twice the positions
        ("phi-4", 128, None, 128),
        ("Phi-4-mini-instruct", 128, None, 96),
    ],
)
def test_heads_and_windows_of_phi(
    tmp_path: Path, name: str, head_dim: int, window: int | None, rotated: int
) -> None:
    shape = read(tmp_path, PUBLISHED[f"microsoft/{name}"])
    assert (shape.head_dim, shape.attention[0].window) == (head_dim, window)
    assert phi_rope(tmp_path, name).rotary_dim(head_dim) == rotated


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_phis_names_of_longrope(tmp_path: Path, kind: str) -> None:
    scaling = {"type": kind, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    own = phi_rope(tmp_path, "Phi-3.5-mini-instruct", rope_scaling=scaling).scaling
    assert isinstance(own, LongScaling)
    assert own.factors(4096) == (1.0,) * 48
    assert own.factors(4097) == (2.0,) * 48
    assert own.attention_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


# NomicBERT's two forms: the keys of GPT-2, and those of transformers.

OLD_NOMIC = PUBLISHED["nomic-ai/nomic-embed-text-v1.5"]
NEW_NOMIC = json.loads(NomicBertConfig(architectures=["NomicBertModel"]).to_json_string())


def test_nomics_forms_differ_in_length_alone(tmp_path: Path) -> None:
    """transformers declares the length of the training, but the model takes more."""
    old, new = read(tmp_path, OLD_NOMIC), read(tmp_path, NEW_NOMIC)
    both = read(tmp_path, OLD_NOMIC | NEW_NOMIC)
    assert (old.max_model_len, new.max_model_len, both.max_model_len) == (8192, 2048, 8192)
    assert old == both
    assert (old.attention, old.family, old.head_dim) == (new.attention, new.family, new.head_dim)


def test_nomics_scaled_positions_end_with_those_of_the_training(tmp_path: Path) -> None:
    config = read(tmp_path, OLD_NOMIC | {"rotary_scaling_factor": 2.0})
    assert config.max_model_len == 2048
    assert config.attention == read(tmp_path, OLD_NOMIC).attention


def test_a_gemma_of_defaults(tmp_path: Path) -> None:
    """A wrapper, and one with two keys of its activation: some versions of transformers obeyed the
    one, others the other."""
    text = {"hidden_size": 32, "num_hidden_layers": 6}
    wrapper = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    assert read(tmp_path, wrapper).num_layers == 6
    config = SIZES | {"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu"}
    assert read(tmp_path, config | {"hidden_activation": "gelu_pytorch_tanh"}).num_layers == 2
    message = 'hidden_activation "gelu" is not supported'
    assert refusal(tmp_path, config | {"hidden_activation": "gelu"}) == message


BOTH_WAYS = ("Llama", "Mistral", "Ministral3", "Qwen2", "Qwen3")
OBEYED = {"Gemma3": "use_bidirectional_attention"} | dict.fromkeys(
    (*BOTH_WAYS, "MiMo", "Mistral3", "Qwen2VL", "Qwen2_5_VL", "Qwen3VL"), "is_causal"
)
"""The key that says whether attention is causal, in families that obey one."""


@pytest.mark.parametrize("family", BOTH_WAYS)
def test_a_decoder_that_attends_both_ways(tmp_path: Path, family: str) -> None:
    config = SIZES | {"architectures": [f"{family}Model"], "pooling": "avg"}
    key = {"is_causal": False}
    shape = read(tmp_path, config | key)
    assert [kind.causal for kind in shape.attention] == [False]
    assert not shape.has_kv_cache
    assert shape.pooling.modes == ("mean",)
    message = 'pooling "last" is not supported'
    assert refusal(tmp_path, config | key | {"pooling": "last"}) == message
    assert refusal(tmp_path, config) == 'pooling "avg" is not known for this architecture'


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_keys_of_direction_are_obeyed_or_refused(tmp_path: Path, family: str) -> None:
    config = SIZES | {"architectures": [ARCHITECTURES[family]]} | NEEDED.get(family, {})
    causal = read(tmp_path, config).has_kv_cache
    keys = {"is_causal": causal, "use_bidirectional_attention": not causal}
    said: dict[str, Any] = {**keys, "pooling": "avg"} if "Bidirectional" in family else keys
    assert read(tmp_path, config | said).has_kv_cache == causal
    for key, value in keys.items():
        if key != OBEYED.get(family):
            message = f"{key} {json.dumps(not value)} is not supported"
            assert refusal(tmp_path, config | {key: not value}) == message
