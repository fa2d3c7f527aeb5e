"""Weights in FP8: each format against transformers on the weights that its files stand for."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import (
    load_share,
    save_bert,
    save_llama,
    worker_config,
)
from tests.workers.models.decoders import DECODERS
from tests.workers.models.later_decoders import LATER_DECODERS
from tests.workers.models.test_decoder_checkpoints import ours, reference
from tests.workers.stages import EncoderStages
from tests.workers.step_maker import encoder_step
from tests.workers.weights.fp8_formats import (
    BLOCK_SIZES,
    FILE,
    FORMATS,
    Fp8Format,
    quantise,
    write_quantization,
)
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfigError, inner_name
from workers.contract.quantization import FROM_16_BITS, Quantization
from workers.contract.share import shares_of
from workers.layers.fp8_method import Fp8Method, dequantised
from workers.layers.layer import Placement
from workers.layers.linear_method import LinearShape
from workers.weights import loader
from workers.weights.loader import LoadedModel

CPU = Placement(torch.device("cpu"), torch.float32)
CLOSE = 1e-4
QKV = tuple(f"model.layers.0.self_attn.{part}_proj" for part in "qkv")
DOWN = "model.layers.1.mlp.down_proj"
SCALE = f"{DOWN}.weight_scale"


def save(folder: Path, layout: Fp8Format, **options: Any) -> Any:
    """A quantised Llama; returns transformers' model with the weights that it stands for."""
    sizes: dict[str, Any] = BLOCK_SIZES if layout.scales == "block" else {"num_hidden_layers": 2}
    model = save_llama(folder, **sizes)
    quantise(folder, model, layout, **options)
    return model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """By channel, with activations by token."""
    save(tmp_path, FORMATS["compressed_channel"])
    return tmp_path


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    changed = load_file(folder / FILE) | tensors
    save_file({name: own for name, own in changed.items() if own is not None}, folder / FILE)


def refusals(folder: Path) -> list[str]:
    """What `penstock inspect` finds. Loading is refused with the first of the lines."""
    config = worker_config(folder)
    found = list(loader.faults(config.execution))
    with pytest.raises(ModelConfigError) as error:
        load_share(config)
    assert found[0] == str(error.value)
    assert all("\n" not in line for line in found)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_transformers_agrees(tmp_path: Path, name: str) -> None:
    expected = reference(save(tmp_path, FORMATS[name]))
    got = ours(tmp_path)
    assert expected.std() > 0.5
    torch.testing.assert_close(got, expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("name", FORMATS)
def test_layers_that_are_ignored(tmp_path: Path, name: str) -> None:
    model = save(tmp_path, FORMATS[name], ignored=(*QKV, DOWN))
    torch.testing.assert_close(ours(tmp_path), reference(model), atol=CLOSE, rtol=0)
    stored = load_file(tmp_path / FILE)
    assert stored[f"{DOWN}.weight"].dtype == torch.float32
    assert stored[f"{DOWN.replace('1', '0')}.weight"].dtype == torch.float8_e4m3fn


def test_regular_expressions_of_layers(tmp_path: Path) -> None:
    save(tmp_path, FORMATS["compressed_channel"], ignored=(*QKV, DOWN))
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    ignore = ["lm_head", r"re:.*layers\.0\.self_attn\.[qkv]_proj$", "re:.*1.mlp.down"]
    config["quantization_config"]["ignore"] = ignore
    file.write_text(json.dumps(config))
    load_share(worker_config(tmp_path))


def test_an_lm_head_is_not_in_fp8_whether_it_is_named_or_not(tmp_path: Path) -> None:
    model = save(tmp_path, FORMATS["fbgemm"])
    write_quantization(tmp_path, FORMATS["fbgemm"], ())
    torch.testing.assert_close(ours(tmp_path), reference(model), atol=CLOSE, rtol=0)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("phi3", "compressed_static"),
        ("gemma3", "compressed_static"),
        ("ernie", "compressed_channel"),
        ("cohere", "fbgemm"),
    ],
)
def test_other_decoders(tmp_path: Path, name: str, layout: str) -> None:
    """Phi's products are fused in its files; Gemma's norms are in float32. Rows of Ernie's and
    Command-R's are read in another order, and so are their scales."""
    model = (DECODERS | LATER_DECODERS)[name].save(tmp_path)
    quantise(tmp_path, model, FORMATS[layout])
    torch.testing.assert_close(ours(tmp_path), reference(model), atol=CLOSE, rtol=0)


@pytest.mark.parametrize(
    ("layout", "left_out"),
    [
        ("compressed_channel", [r"re:.*mlp\.fc[12]$"]),
        ("compressed_channel", [f"model.layers.{i}.mlp.fc{k}" for i in range(6) for k in (1, 2)]),
        ("transformers_static", ["mlp.fc1", "fc2"]),
        ("modelopt", ["*.mlp.fc*"]),
    ],
)
def test_layers_that_have_other_names_here(
    tmp_path: Path, layout: str, left_out: list[str]
) -> None:
    """Phi's feed-forward network, which `quantise` leaves as it is."""
    model = LATER_DECODERS["phi"].save(tmp_path)
    quantise(tmp_path, model, FORMATS[layout])
    write_quantization(tmp_path, FORMATS[layout], ("lm_head", *left_out))
    torch.testing.assert_close(ours(tmp_path), reference(model), atol=CLOSE, rtol=0)


@pytest.mark.parametrize(
    ("layout", "left_out"),
    [
        ("compressed_channel", r"re:.*language_model.*layers\.0\.mlp"),
        ("compressed_channel", r"re:^model\.layers\.0\.mlp\."),
        ("transformers_static", "model.language_model.layers.0.mlp"),
        ("modelopt", "language_model.model.layers.0.mlp*"),
    ],
)
def test_layers_of_a_wrapper(tmp_path: Path, layout: str, left_out: str) -> None:
    """By each name that a wrapper's language model has in a file or in a tool."""
    model = DECODERS["mistral3"].save(tmp_path)
    inner = {inner_name(name): own for name, own in model.named_parameters()}
    stored = {name: inner.get(inner_name(name)) for name in load_file(tmp_path / FILE)}
    beside = [name for name in stored if inner_name(name) is None or "layers.0.mlp" in name]
    as_stored = SimpleNamespace(named_parameters=stored.items)
    ignored = tuple(name.removesuffix(".weight") for name in beside)
    quantise(tmp_path, as_stored, FORMATS[layout], ignored=ignored)
    write_quantization(tmp_path, FORMATS[layout], (left_out, "re:.*vision_tower"))
    torch.testing.assert_close(ours(tmp_path), reference(model), atol=CLOSE, rtol=0)


def test_rows_in_another_order_have_no_scales_by_block(tmp_path: Path) -> None:
    model = LATER_DECODERS["ernie"].save(tmp_path)
    block = next(name for name, layout in FORMATS.items() if layout.scales == "block")
    quantise(tmp_path, model, FORMATS[block])
    (line, *_) = refusals(tmp_path)
    assert line.startswith("model.layers.0.self_attn.q_proj has rows in another order")


def test_an_encoder_by_the_names_in_its_files(tmp_path: Path) -> None:
    model = save_bert(tmp_path, labels=2)
    ignored = ("bert.pooler.dense", "classifier", "bert.encoder.layer.1.output.dense")
    quantise(tmp_path, model, FORMATS["compressed_channel"], ignored=ignored)
    text = list(range(1, 60))
    stages = EncoderStages(tmp_path, task="classify", num_stages=2)
    states, _ = stages.compute(encoder_step([text]))
    with torch.inference_mode():
        expected = model.bert(torch.tensor([text])).last_hidden_state[0]
    # The last layer goes on with the token that is pooled.
    torch.testing.assert_close(states[0], expected[0], atol=1e-5, rtol=0)


def fp8_layer(quantization: Quantization, members: dict[str, int], inputs: int = 256) -> Fp8Method:
    """Filled with random bits of weights, scales and static scales of inputs."""
    method = Fp8Method(LinearShape(inputs, members, bias=False), CPU, quantization)
    torch.manual_seed(2)
    for tensor in method.weights().values():
        tensor.copy_(torch.rand(tensor.shape) + 0.5)
    return method


@pytest.mark.parametrize("weights", ["tensor", "channel", "block"])
@pytest.mark.parametrize("members", [{"q": 256, "k": 128, "v": 64}, {"gate": 128, "up": 128}])
def test_members_keep_their_scales(weights: Any, members: dict[str, int]) -> None:
    """A fused product has each member's weights exactly, and the largest scale of inputs."""
    activations: Any = "block" if weights == "block" else "tensor"
    quantization = Quantization(method="fp8", weights=weights, activations=activations)
    method = fp8_layer(quantization, members)
    filled, whole = method.weights(), method.weight()
    alone = []
    for name, rows in members.items():
        own = fp8_layer(quantization, {name: rows})
        for part, tensor in own.weights().items():
            tensor.copy_(filled[part])
        alone.append(dequantised(own.weight(), torch.float32))
    assert torch.equal(dequantised(whole, torch.float32), torch.cat(alone))
    scales = torch.cat([filled[f"{name}.weight_scale"].flatten() for name in members])
    assert len(scales.unique()) == len(scales) >= 2
    if activations == "tensor":
        inputs = [filled[f"{name}.input_scale"].item() for name in members]
        assert whole.input_scale is not None
        assert (whole.input_scale.item(), len({*inputs})) == (max(inputs), len(inputs))


def test_a_member_that_ends_within_a_block() -> None:
    quantization = Quantization(method="fp8", weights="block", activations="block")
    with pytest.raises(ModelConfigError, match="q with k has 192 rows, not whole blocks of 128"):
        fp8_layer(quantization, {"q": 192, "k": 128})


def test_members_of_which_some_are_ignored(tmp_path: Path) -> None:
    save(tmp_path, FORMATS["compressed_channel"], ignored=(QKV[1],))
    (line,) = refusals(tmp_path)
    assert line.startswith(f"{QKV[0]} is in FP8 and {QKV[1]} is not")


@pytest.mark.parametrize("part", ["weight_scale", "input_scale"])
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (None, "has no tensor {name}"),
        (torch.zeros(()), "{name} in {file} holds 0.0: a scale is a number above 0"),
        (torch.tensor(-1.0), "{name} in {file} holds -1.0: a scale is a number above 0"),
        (torch.tensor(float("nan")), "{name} in {file} holds nan: a scale"),
        (torch.tensor(float("inf")), "{name} in {file} holds inf: a scale"),
        (torch.tensor(1e-60, dtype=torch.float64), "{name} in {file} holds 0.0: a scale"),
        (torch.ones(2), "{name} in {file} has shape [2], the model needs []"),
        (torch.ones((), dtype=torch.uint8), "{name} in {file} is torch.uint8, which is not"),
    ],
)
def test_scales_of_tensors(
    tmp_path: Path, part: str, wrong: torch.Tensor | None, reason: str
) -> None:
    save(tmp_path, FORMATS["compressed_static"])
    change(tmp_path, **{(name := f"{DOWN}.{part}"): wrong})
    (line,) = refusals(tmp_path)
    assert reason.format(name=name, file=tmp_path / FILE) in line


@pytest.mark.parametrize("shape", [(), (1,), (63,), (1, 64), (64, 2)])
def test_scales_of_channels_of_the_wrong_shape(checkpoint: Path, shape: tuple[int, ...]) -> None:
    change(checkpoint, **{SCALE: torch.ones(shape)})
    (line,) = refusals(checkpoint)
    assert f"{SCALE} in {checkpoint / FILE} has shape {list(shape)}" in line


def test_scales_of_blocks_of_the_wrong_shape(tmp_path: Path) -> None:
    save(tmp_path, FORMATS["transformers_block"])
    name = f"{DOWN}.weight_scale_inv"
    change(tmp_path, **{name: torch.ones(2, 3)})
    (line,) = refusals(tmp_path)
    assert line == f"{name} in {tmp_path / FILE} has shape [2, 3], the model needs [2, 2]"
    change(tmp_path, **{name: None})
    (line,) = refusals(tmp_path)
    assert line == f"{tmp_path} has no tensor {name}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.int8])
def test_a_weight_that_is_not_in_fp8(checkpoint: Path, dtype: torch.dtype) -> None:
    change(checkpoint, **{f"{DOWN}.weight": torch.ones(64, 112).to(dtype)})
    (line,) = refusals(checkpoint)
    where = f"{DOWN}.weight in {checkpoint / FILE}"
    assert line == f"{where} is {dtype}, and the model's quantization says FP8"


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight"])
def test_a_weight_that_is_in_fp8_against_the_configuration(checkpoint: Path, name: str) -> None:
    change(checkpoint, **{name: load_file(checkpoint / FILE)[name].to(torch.float8_e4m3fn)})
    (line,) = refusals(checkpoint)
    assert line.startswith(f"{name} in ")
    assert line.endswith(
        "is torch.float8_e4m3fn, which is served only for linear layers that "
        "the model's quantization names"
    )


def test_fp8_without_a_word_of_it(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    del config["quantization_config"]
    (checkpoint / "config.json").write_text(json.dumps(config))
    unread, unfit = refusals(checkpoint)
    assert "weight_scale (and " in unread
    assert unfit.endswith(
        "is torch.float8_e4m3fn, which is served only for linear layers that "
        "the model's quantization names"
    )


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.zero", "model.layers.0.mlp.down_proj.k_scale"]
)
def test_tensors_that_nobody_reads(checkpoint: Path, name: str) -> None:
    change(checkpoint, **{name: torch.ones(())})
    (line,) = refusals(checkpoint)
    assert f"holds {name}, which" in line


def test_memory_and_what_is_said_of_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As an outline says it before weights are read. Scales are counted as they are stored."""
    caplog.set_level(logging.INFO)
    execution = worker_config(checkpoint).execution
    (whole,) = shares_of([2])
    outline = loader.outline(execution, whole)
    numbers = sum(own.numel() for own in outline.weights().values())
    dequantised = loader.held_bytes(execution, outline)
    assert dequantised == 4 * numbers
    assert load_share(worker_config(checkpoint)).weight_bytes == dequantised
    (line,) = caplog.messages
    assert line.startswith("compressed-tensors: weights in FP8, a scale for each channel, ")
    assert "; dequantised to float32 for cpu, " in line
    monkeypatch.setattr("workers.contract.config.FP8_DEVICES", frozenset(("cpu",)))
    in_fp8 = sum(own.numel() for own in outline.weights().values() if own.itemsize == 1)
    assert loader.held_bytes(execution, outline) == dequantised - 3 * in_fp8 < dequantised / 2


@pytest.mark.parametrize("name", FORMATS)
def test_dummy_weights(tmp_path: Path, name: str) -> None:
    """They need no files, and have the gain of others."""
    save(tmp_path, FORMATS[name])
    (tmp_path / FILE).unlink()
    loaded = load_share(worker_config(tmp_path, load_format="dummy"))
    states = torch.randn(50, read_model_config(tmp_path).hidden_size)
    assert 1.5 < products(loaded, states)[0].std() < 2.5


def products(loaded: LoadedModel, states: torch.Tensor) -> list[torch.Tensor]:
    """What the first layer makes of states, in which each of its products has a part."""
    layer = loaded.model.layers[0]
    with torch.inference_mode():
        projected = layer.qkv(states)
        return [projected, layer.after_attention(states.clone(), projected[:, :4])]


def test_fp8_made_at_load(tmp_path: Path) -> None:
    """The largest number of each row becomes 448. A row of zeros stays one."""
    save_llama(tmp_path, num_hidden_layers=2)
    weights = load_file(tmp_path / FILE)
    weights[f"{QKV[0]}.weight"][3] = 0
    save_file(weights, tmp_path / FILE)
    plain = read_model_config(tmp_path)
    made = msgspec.structs.replace(plain, quantization=FROM_16_BITS)
    states = torch.randn(9, 64)
    exact = products(load_share(worker_config(tmp_path)), states)
    got = products(load_share(worker_config(tmp_path, model=made)), states)
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        scales = weights[name].abs().amax(1, keepdim=True).clamp(min=1e-9) / 448
        values = (weights[name] / scales).to(torch.float8_e4m3fn)
        weights[name] = values.float() * scales
    save_file(weights, tmp_path / FILE)
    expected = products(load_share(worker_config(tmp_path)), states)
    for one, other, before in zip(got, expected, exact, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(one, before, atol=1e-2)
