"""Keys of `config.json` of any family: read by any name, of no matter, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine_core.workflows.base import workflow_for
from tests.workers.contract.checkpoint.config_files import BERTS, PUBLISHED, read, refusal, written
from workers.contract.checkpoint.architectures import FAMILIES
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.checkpoint.config_keys import ConfigKeys
from workers.contract.model_config import ModelConfigError
from workers.models.base import model_class


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    long = {"format": "int-quantized", "ignore": ["lm_head"] * 100}
    message = refusal(tmp_path, written(compression_config=long))
    assert '"format":"int-quantized"' in message
    assert message.endswith("... is not supported")
    assert len(message) < 150


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", *BERTS])
def test_values_that_change_nothing(tmp_path: Path, architecture: str) -> None:
    plain = read(tmp_path, written(architecture))
    harmless = {
        "quantization_config": None,
        "sliding_window": None,
        "a_name_that_nobody_knows": None,
        "pruned_heads": {},
        "pretraining_tp": 2,
        "attention_dropout": 0.1,
        "hidden_dropout_prob": 0.3,
        "classifier_dropout": 0.1,
        "use_cache": False,
        "gradient_checkpointing": True,
        "chunk_size_feed_forward": 64,
        "_name_or_path": "somewhere",
        "auto_map": {"AutoConfig": "configuration.Config"},
        "uniem_pooling_strategy": "last_mean",
        "uniem_version": "0.2",
        "initializer_range": float("inf"),
    }
    own: dict[str, Any] = {"position_embedding_type": "absolute"}
    if architecture == "LlamaForCausalLM":
        own = {
            "layer_types": ["full_attention"] * plain.num_layers,
            "is_causal": True,
            "partial_rotary_factor": 1.0,
        }
    assert read(tmp_path, written(architecture, **harmless, **own)) == plain


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("bigcode/starcoder2-3b", {"activation_function": "gelu"}),  # as starcoder2-7b
        ("openai-community/gpt2", {"n_special": 0, "predict_special_tokens": True}),  # medium
        ("meta-llama/Llama-3.2-1B-Instruct", {"internal_version": "7b-alpha-v2"}),  # ALLaM
    ],
)
def test_keys_of_some_checkpoints_of_a_family(
    tmp_path: Path, name: str, keys: dict[str, Any]
) -> None:
    assert read(tmp_path, PUBLISHED[name] | keys) == read(tmp_path, PUBLISHED[name])


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", *BERTS])
def test_a_key_that_nobody_knows(tmp_path: Path, architecture: str) -> None:
    message = refusal(tmp_path, written(architecture, residual_multiplier=0.22))
    assert message == "residual_multiplier 0.22 is not known for this architecture"
    beside = refusal(
        tmp_path, written(architecture, rope_scaling={"rope_type": "default", "mscale": 2})
    )
    named = "rope_scaling.mscale 2" if architecture == "LlamaForCausalLM" else "rope_scaling "
    assert beside.startswith(named)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", *BERTS])
def test_what_is_not_written_is_what_transformers_takes(tmp_path: Path, architecture: str) -> None:
    absent = ("hidden_act", "rms_norm_eps", "layer_norm_eps", "tie_word_embeddings")
    whole = written(architecture)
    some = {key: value for key, value in whole.items() if key not in absent}
    assert read(tmp_path, some) == read(tmp_path, whole)


def test_every_row_of_the_table_is_a_model_and_a_workflow() -> None:
    for architecture, family in FAMILIES.items():
        assert model_class(architecture).__module__.startswith("workers.models.")
        assert FAMILIES.get(family.base, family).read_shape is family.read_shape
        cached = "decoder" in family.model_class
        assert workflow_for(family.task, has_kv_cache=cached).task == family.task


def test_an_unknown_architecture_is_told_in_a_line(tmp_path: Path) -> None:
    """Before anything else is read: the rest of such a file may have any form."""
    message = refusal(tmp_path, {"architectures": ["DbrxForCausalLM"], "hidden_size": "x"})
    assert message == (
        "architecture 'DbrxForCausalLM' is not supported; docs/models.md lists those that are"
    )


@pytest.mark.parametrize(
    "changes",
    [{"id2label": ["a"]}, {"rope_scaling": [1]}, {"hidden_size": "x"}, {"layer_types": 5}],
)
def test_values_of_another_type(tmp_path: Path, changes: Any) -> None:
    named = f"{next(iter(changes))} is not valid: "
    assert refusal(tmp_path, written(**changes)).startswith(named)


def test_an_adapter_beside_the_weights(tmp_path: Path) -> None:
    read(tmp_path, written())
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ModelConfigError, match=r"adapter_config\.json: adapters are not supported"):
        read_model_config(tmp_path)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_not_finite(tmp_path: Path, value: float) -> None:
    """Python's JSON has them. They do no harm where nothing reads them."""
    plain = read(tmp_path, written())
    assert read(tmp_path, written(attention_dropout=value)) == plain
    shown = json.dumps(value)
    for key in ("rms_norm_eps", "hidden_size"):
        message = refusal(tmp_path, written() | {key: value})
        assert message == f"{key} {shown} is not a finite number"
    message = refusal(tmp_path, written(logit_scale=value))
    assert message == f"logit_scale {shown} is not supported"
    message = refusal(tmp_path, written(time_step_limit=[0.0, value]))
    assert message == f"time_step_limit [0.0,{shown}] is not known for this architecture"


def test_an_unlimited_tokenizer(tmp_path: Path) -> None:
    plain = read(tmp_path, written("BertModel"))
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": Infinity}')
    assert read(tmp_path, written("BertModel")) == plain


FILE = Path("config.json")


def unread(keys: ConfigKeys) -> str:
    with pytest.raises(ModelConfigError) as error:
        keys.check_all_read()
    return str(error.value)


def test_a_key_that_nothing_has_read() -> None:
    keys = ConfigKeys(FILE, {"read": 1, "torch_dtype": "float16", "absent": None, "unread": [1]})
    keys.size("read")
    assert unread(keys) == "config.json: unread [1] is not known for this architecture"
    keys.ignore("unread")
    keys.check_all_read()


def test_keys_within_an_object_are_all_read_too() -> None:
    values = {"text_config": {"hidden_size": 8, "is_decoder": False, "unread": 2}}
    keys = ConfigKeys(FILE, values)
    text = keys.nested("text_config")
    assert text.size("hidden_size") == 8
    assert unread(keys) == "config.json: text_config.unread 2 is not known for this architecture"
    with pytest.raises(ModelConfigError, match=r"^config\.json has no 'text_config\.vocab_size'$"):
        text.size("vocab_size")
    assert keys.nested("vision_config").optional_size("hidden_size") is None


def test_what_no_family_obeys_is_refused_within_an_object() -> None:
    values: dict[str, Any] = {"text_config": {"quantization_config": {"quant_method": "awq"}}}
    with pytest.raises(ModelConfigError, match=r"^config\.json: text_config\.quantization_config "):
        ConfigKeys(FILE, values).nested("text_config")


def test_a_familys_own_names() -> None:
    keys = ConfigKeys(FILE, {"dim": 8, "num_hidden_layers": 2})
    keys.spell({"hidden_size": "dim", "num_hidden_layers": "n_layers", "vocab_size": "words"})
    assert (keys.size("hidden_size"), keys.size("num_hidden_layers")) == (8, 2)
    with pytest.raises(ModelConfigError, match=r"^config\.json has no 'words'$"):
        keys.size("vocab_size")
    keys.check_all_read()


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
def test_what_is_not_a_size(value: Any) -> None:
    with pytest.raises(ModelConfigError, match=r"^config\.json: hidden_size "):
        ConfigKeys(FILE, {"hidden_size": value}).size("hidden_size")
