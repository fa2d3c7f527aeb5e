"""What configurations say of FP8: read, or refused by the key."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.contract.checkpoint.config_files import read, refusal, written
from tests.workers.weights.fp8_formats import FORMATS, arguments, compressed, write_quantization
from workers.contract.config import AskedTask
from workers.contract.model_config import ModelConfigError, wrapper_names
from workers.contract.quantization import Quantization

LAYER = "model.layers.0.mlp.up_proj"
TOKEN = arguments("token", dynamic=True)
CHANNEL = arguments("channel")
BLOCKS = arguments("block", block_structure=[128, 128])


def read_format(folder: Path, name: str, *ignored: str) -> Quantization:
    (folder / "config.json").write_text(json.dumps(written()))
    write_quantization(folder, FORMATS[name], ignored)
    found = read(folder, json.loads((folder / "config.json").read_text())).quantization
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "weights", "activations", "kv_cache"),
    [
        ("compressed_static", "tensor", "tensor", True),
        ("compressed_tensor", "tensor", "token", False),
        ("compressed_channel", "channel", "token", False),
        ("compressed_block", "block", "block", False),
        ("transformers_block", "block", "block", False),
        ("transformers_static", "tensor", "tensor", False),
        ("autofp8_static", "tensor", "tensor", True),
        ("autofp8_dynamic", "tensor", "token", False),
        ("fbgemm", "channel", "token", False),
        ("modelopt", "tensor", "tensor", True),
        ("modelopt_in_config", "tensor", "tensor", False),
        ("modelopt_in_both", "tensor", "tensor", False),
        ("modelopt_channel", "channel", "token", False),
    ],
)
def test_formats(tmp_path: Path, name: str, weights: str, activations: str, kv_cache: bool) -> None:
    found = read_format(tmp_path, name, "lm_head", LAYER)
    assert (found.weights, found.activations, found.kv_cache_fp8) == (
        weights,
        activations,
        kv_cache,
    )
    assert found.most_amax == (1200.0 if name == "fbgemm" else None)
    assert not found.keeps(LAYER)
    assert found.keeps(LAYER.replace("up", "gate"))
    assert found.keeps(LAYER.replace("0", "10"))
    assert not found.keeps("lm_head")


@pytest.mark.parametrize(
    ("name", "ignored", "kept", "left"),
    [
        ("compressed_channel", "re:.*mlp", "model.layers.0.self_attn.o_proj", LAYER),
        ("compressed_channel", "model.layers.0.mlp", LAYER, "model.layers.0.mlp"),
        ("compressed_channel", r"re:model\.layers\.0\.", "model.layers.1.mlp.up_proj", LAYER),
        ("transformers_block", "model.layers.1", "model.layers.10.mlp.up_proj", "model.layers.1.a"),
        ("transformers_block", "up_proj", "model.layers.0.mlp.gate_proj", LAYER),
        ("transformers_block", "mlp.gate", "model.layers.0.mlp.gate_proj", "m.mlp.gate"),
        ("autofp8_dynamic", "up_proj", "model.layers.0.mlp.gate_proj", LAYER),
        ("fbgemm", LAYER, "model.layers.1.mlp.up_proj", LAYER),
        ("modelopt", "model.layers.0*", "model.layers.1.mlp.up_proj", LAYER),
        ("modelopt", "*mlp*", "model.layers.0.self_attn.o_proj", LAYER),
    ],
)
def test_how_tools_name_layers(
    tmp_path: Path, name: str, ignored: str, kept: str, left: str
) -> None:
    found = read_format(tmp_path, name, ignored)
    assert (found.keeps(kept), found.keeps(left)) == (True, False)


def quantised(**config: Any) -> dict[str, Any]:
    return written(quantization_config=config)


def groups(*own: dict[str, Any], **changes: Any) -> dict[str, Any]:
    config = compressed({}, {}) | {"config_groups": {f"group_{i}": g for i, g in enumerate(own)}}
    return written(quantization_config=config | changes)


def group(weights: Any = CHANNEL, activations: Any = TOKEN, **changes: Any) -> dict[str, Any]:
    return {"targets": ["Linear"], "weights": weights, "input_activations": activations} | changes


GROUP = "quantization_config.config_groups.group_0"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (groups(group(), format="pack-quantized"), 'quantization_config.format "pack-quantized"'),
        (groups(group(), format="nvfp4-pack-quantized"), '"nvfp4-pack-quantized" is not supported'),
        (groups(group(), format="mxfp4-pack-quantized"), '"mxfp4-pack-quantized" is not supported'),
        (groups(group(), format="int-quantized"), 'format "int-quantized" is not supported'),
        (groups(group(), format=None, sparsity_config={"format": "sparse-24"}), '"sparse-24"'),
        (groups(group(), transform_config={"config_groups": {}}), ".transform_config "),
        (groups(group(CHANNEL | {"num_bits": 4})), f"{GROUP}.weights.num_bits 4 is not supported"),
        (groups(group(CHANNEL | {"type": "int"})), f'{GROUP}.weights.type "int" is not supported'),
        (groups(group({"strategy": "channel"})), f'{GROUP}.weights.type "int" is not supported'),
        (groups(group(CHANNEL | {"symmetric": False})), f"{GROUP}.weights.symmetric false"),
        (groups(group(CHANNEL | {"dynamic": True})), f"{GROUP}.weights.dynamic true"),
        (groups(group(CHANNEL | {"strategy": "group"})), f"{GROUP}.weights.strategy 'group'"),
        (groups(group(CHANNEL | {"new": 1})), f"{GROUP}.weights.new 1 is not known"),
        (
            groups(group(BLOCKS | {"block_structure": [64, 128]})),
            f"{GROUP}.weights.block_structure [64,128] is not supported",
        ),
        (groups(group({**BLOCKS, "block_structure": None})), ".weights.block_structure null"),
        (
            groups(group(BLOCKS)),
            "compressed-tensors: weights by block with activations by token are not supported",
        ),
        (groups(group(CHANNEL, None)), f"{GROUP}.input_activations null (FP8 weights alone)"),
        (
            groups(group(CHANNEL, TOKEN | {"strategy": "tensor"})),
            f"{GROUP}.input_activations.strategy 'tensor' is not supported (one of token, group)",
        ),
        (groups(group(CHANNEL, TOKEN | {"dynamic": "local"})), ".input_activations.dynamic is not"),
        (
            groups(group(BLOCKS, arguments("group", dynamic=True, group_size=64))),
            f"{GROUP}.input_activations.group_size 64 is not supported",
        ),
        (groups(group(output_activations=TOKEN)), f"{GROUP}.output_activations "),
        (
            groups(group(), group(arguments("tensor"))),
            "quantization_config.config_groups differ in group_0 and group_1",
        ),
        (groups({"weights": CHANNEL, "input_activations": TOKEN}), f"has no '{GROUP}.targets'"),
        (groups(group(), ignore=["re:("]), "'(' is no regular expression"),
        (groups(group(), ignore=["re:(.*a)*b"]), "'(.*a)*b' might take too long"),
        (groups(group(), ignore=[f"re:{'.*' * 9}b"]), "b' might take too long"),
        (groups(group(), ignore="lm_head"), "quantization_config.ignore is not valid"),
        (groups(group(), kv_cache_scheme=CHANNEL), '.kv_cache_scheme.strategy "channel"'),
        (groups(group(), kv_cache_scheme={"num_bits": 4}), ".kv_cache_scheme.num_bits 4"),
        (quantised(quant_method="fp8", fmt="e5m2"), 'quantization_config.fmt "e5m2"'),
        (quantised(quant_method="fp8", activation_scheme="none"), "activation_scheme 'none'"),
        (quantised(quant_method="fp8", weight_block_size=[64, 64]), "weight_block_size [64,64]"),
        (
            quantised(
                quant_method="fp8", weight_block_size=[128, 128], activation_scheme="static"
            ),
            "fp8: weights by block with activations by tensor are not supported",
        ),
        (quantised(quant_method="fp8", scale_fmt="ue8m0"), 'scale_fmt "ue8m0"'),
        (quantised(quant_method="fp8", modules_to_convert=["embed"]), "modules_to_convert "),
        (
            quantised(
                quant_method="fp8", weight_block_size=[128, 128], weight_per_tensor=True
            ),
            "weight_per_tensor true",
        ),
        (quantised(quant_method="fp8", bits=4), "quantization_config.bits 4 is not known"),
        (quantised(quant_method="fbgemm_fp8", activation_scale_ub=0), "activation_scale_ub 0 is"),
        (quantised(quant_method="fbgemm_fp8", activation_scale_ub="a"), "activation_scale_ub is"),
        (quantised(quant_method="modelopt", quant_algo="NVFP4"), 'quant_algo "NVFP4"'),
        (quantised(quant_method="modelopt", quant_algo="W4A8_AWQ"), 'quant_algo "W4A8_AWQ"'),
        (quantised(quant_algo="NVFP4"), 'quantization_config.quant_algo "NVFP4" is not'),
        (quantised(quant_algo="FP8", kv_cache_scheme="INT8"), '.kv_cache_scheme "INT8" is not'),
        (quantised(quant_method="awq"), "with the method 'awq' is not supported"),
        (quantised(quant_method=["fp8"]), "with the method ['fp8'] is not supported"),
        (quantised(load_in_8bit=True), 'quantization_config {"load_in_8bit":true} is not'),
        (written(quantization_config=8), "quantization_config is not valid"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    assert named in refusal(tmp_path, config)


def test_the_key_of_older_files_and_several_groups_of_one_scheme(tmp_path: Path) -> None:
    own = groups(group(targets=["re:.*self_attn"]), group(targets=[LAYER]), ignore=["re:.*o_proj"])
    own["compression_config"] = own.pop("quantization_config")
    found = read(tmp_path, own).quantization
    assert found is not None
    layers = ("model.layers.1.self_attn.q_proj", LAYER, f"{LAYER}s", "a.self_attn.o_proj")
    assert [found.keeps(layer) for layer in layers] == [True, True, False, False]


def test_modelopt_names_no_method_in_its_first_versions(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})
    )
    found = read(tmp_path, quantised(quant_algo="FP8", kv_cache_scheme="FP8")).quantization
    assert found is not None
    assert (found.method, found.activations, found.kv_cache_fp8) == ("modelopt", "tensor", True)


def test_what_qwen_says_beside_its_blocks(tmp_path: Path) -> None:
    own = {"weight_block_size": [128, 128], "weight_per_tensor": False, "act_per_tensor": False}
    found = read(tmp_path, quantised(quant_method="fp8", **own)).quantization
    assert found is not None
    assert found.weights == "block"


def test_keys_and_values_alone(tmp_path: Path) -> None:
    """Then no layer is in FP8."""
    config = compressed(
        {}, {}, config_groups={}, format="dense", kv_cache_scheme=arguments("tensor")
    )
    found = read(tmp_path, written(quantization_config=config)).quantization
    assert found is not None
    assert (found.kv_cache_fp8, found.keeps(LAYER)) == (True, False)
    nothing = compressed({}, {}, config_groups={}, format="dense")
    assert read(tmp_path, written(quantization_config=nothing)).quantization is None


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"quant_algo": "FP8", "exclude_modules": ["lm_head"]}, None),
        ({"quant_algo": "FP8"}, "is not that of hf_quant_config.json"),
        ({"quant_algo": "FP8", "exclude_modules": ["lm_head"], "new": 1}, "quantization.new 1 is"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {}}, '"MIXED_PRECISION" is not'),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, 'kv_cache_quant_algo "NVFP4"'),
    ],
)
def test_two_files_of_modelopt(tmp_path: Path, own: dict[str, Any], named: str | None) -> None:
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": own}))
    config = quantised(quant_method="modelopt", quant_algo="FP8", ignore=["lm_head"])
    if named is None:
        assert read(tmp_path, config).quantization is not None
    else:
        with pytest.raises(ModelConfigError) as error:
            read(tmp_path, config)
        assert named in str(error.value)


def test_a_file_of_gptq_and_one_about_onnx(tmp_path: Path) -> None:
    file = tmp_path / "quantize_config.json"
    file.write_text(json.dumps({"per_channel": True, "reduce_range": True}))
    assert read(tmp_path, written()).quantization is None
    for own, bits in (({"bits": 3, "group_size": 128}, "3"), ({}, "few")):
        file.write_text(json.dumps(own))
        with pytest.raises(ModelConfigError, match=f"quantization to {bits} bits is not supported"):
            read(tmp_path, written())


@pytest.mark.parametrize("asked", ["generate", "embed"])
def test_names_as_the_files_have_them(tmp_path: Path, asked: AskedTask) -> None:
    """A wrapper's language model; a decoder that was saved without its head."""
    text = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2}
    config = quantised(**compressed(CHANNEL, TOKEN, ignore=["layers.0.mlp.up_proj"]))
    found = read(tmp_path, config, asked).quantization
    assert found is not None
    assert not found.keeps(LAYER, "layers.0.mlp.up_proj")
    wrapper = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}
    name = "model.language_model.layers.0.mlp.up_proj"
    own = compressed(CHANNEL, TOKEN, ignore=[name, "re:.*vision_tower"])
    found = read(tmp_path, wrapper | {"text_config": text, "quantization_config": own}, None)
    assert found.quantization is not None
    assert not found.quantization.keeps(*wrapper_names(LAYER))
    with pytest.raises(ModelConfigError, match=r"text_config\.quantization_config "):
        read(tmp_path, wrapper | {"text_config": text | {"quantization_config": own}})
