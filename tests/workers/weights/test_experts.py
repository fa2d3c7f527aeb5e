"""Experts in checkpoints: both published forms, what is missing or unfit, and dummy weights."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import load_share, with_execution, worker_config
from tests.workers.models.expert_decoders import EXPERT_DECODERS
from tests.workers.stages import NUM_BLOCKS, Stages
from tests.workers.step_maker import StepMaker
from workers.attention.base import AttentionBackend
from workers.contract.config import WorkerConfig
from workers.contract.model_config import ModelConfigError
from workers.layers.experts import Choice, Router
from workers.layers.fp8_method import FP8
from workers.stage.decode_runner import DecodeRunner
from workers.weights import loader

Tensors = dict[str, torch.Tensor]
FIRST = "model.layers.0.mlp.experts"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight experts, each in tensors of its own."""
    folder = tmp_path_factory.mktemp("qwen")
    EXPERT_DECODERS["qwen3_moe"].save(folder)
    return folder


def stacked(tensors: Tensors) -> Tensors:
    """Those of a layer in one tensor, as transformers 5 has them in memory."""
    experts = {name for name in tensors if ".experts." in name}
    layers = {name.partition(".experts.")[0] for name in experts}
    others = {name: own for name, own in tensors.items() if name not in experts}

    def all_of(layer: str, part: str) -> torch.Tensor:
        return torch.stack([tensors[f"{layer}.experts.{i}.{part}_proj.weight"] for i in range(8)])

    for layer in layers:
        gate_up = torch.cat([all_of(layer, "gate"), all_of(layer, "up")], dim=1)
        others[f"{layer}.experts.gate_up_proj"] = gate_up
        others[f"{layer}.experts.down_proj"] = all_of(layer, "down")
    return others


def changed(folder: Path, copy: Path, change: Callable[[Tensors], Tensors]) -> Path:
    save_file(change(load_file(folder / "model.safetensors")), copy / "model.safetensors")
    (copy / "config.json").write_text((folder / "config.json").read_text())
    return copy


def filled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Tensors:
    """All weights as they are read."""
    read: Tensors = {}
    real = loader._read

    def reading(config: Any, model: Any, weights: Any) -> None:
        real(config, model, weights)
        read.update({name: own.clone() for name, own in weights.items()})

    monkeypatch.setattr(loader, "_read", reading)
    load_share(worker_config(folder))
    return read


def test_experts_in_one_tensor_are_those_of_many(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = filled(qwen, monkeypatch)
    assert f"{FIRST}.7.down_proj.weight" in own
    together = filled(changed(qwen, tmp_path, stacked), monkeypatch)
    assert own.keys() == together.keys()
    assert all(own[name].equal(together[name]) for name in own)


def without(pattern: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        name: own for name, own in tensors.items() if not re.search(pattern, name)
    }


def put(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: torch.zeros(shape)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without(r"\.experts\.5\.up_proj"),
            rf"has no tensor {FIRST}\.5\.up_proj\.weight \(and 3 more\)",
        ),
        (
            put(f"{FIRST}.8.up_proj.weight", 24, 64),
            rf"{FIRST}\.8\.up_proj\.weight, which the model",
        ),
        (
            put(f"{FIRST}.3.gate_proj.weight", 25, 64),
            rf"{FIRST}\.3\.gate_proj\.weight in .* has shape \[25, 64\], the model needs \[24,",
        ),
        (
            put("model.layers.0.mlp.gate.weight", 7, 64),
            r"mlp\.gate\.weight in .* has shape \[7, 64\], the model needs \[8, 64\]",
        ),
        (
            lambda own: stacked(own) | {f"{FIRST}.gate_up_proj": torch.zeros(7, 48, 64)},
            rf"{FIRST}\.gate_up_proj in .* has shape \[7, 48, 64\], the model needs \[8, 48, 64\]",
        ),
        (
            lambda own: without(r"layers\.0.*gate_up_proj")(stacked(own)),
            rf"has no tensor {FIRST}\.0\.gate_proj\.weight \(and 15 more\)",
        ),
    ],
)
def test_a_fault_is_told_with_the_tensor(
    qwen: Path, tmp_path: Path, change: Callable[[Tensors], Tensors], message: str
) -> None:
    changed(qwen, tmp_path, change)
    with pytest.raises(ModelConfigError, match=message) as error:
        load_share(worker_config(tmp_path))
    assert "\n" not in str(error.value)


def in_fp8(folder: Path, **more: Any) -> None:
    """Have the configuration say that all but attention is in FP8."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "modules_to_not_convert": ["q_proj", "k_proj", "v_proj", "o_proj"],
        **more,
    }
    (folder / "config.json").write_text(json.dumps(config))


def check_experts(folder: Path, wide: Tensors) -> None:
    """The first layer's experts compute as their numbers in float32, each of some rows."""
    layer: Any = load_share(worker_config(folder)).model.layers[0]
    torch.manual_seed(5)
    size = wide[f"{FIRST}.0.down_proj.weight"].shape[0]
    rows, experts = torch.randn(4, size), torch.arange(4)[:, None]
    choice = Choice(experts, torch.ones(4, 1))
    got = layer._mlp._experts.add_to(torch.zeros(4, size), rows, choice)
    for expert, (row, out) in enumerate(zip(rows, got, strict=True)):
        gate, up, down = (
            wide[f"{FIRST}.{expert}.{part}_proj.weight"] for part in ("gate", "up", "down")
        )
        want = down @ (torch.nn.functional.silu(gate @ row) * (up @ row))
        torch.testing.assert_close(out, want, atol=1e-4, rtol=1e-4)


def test_experts_in_fp8_compute_as_their_numbers(qwen: Path, tmp_path: Path) -> None:
    """Each expert's scale is its own, and the router is in no FP8."""
    scales: dict[str, float] = {}

    def quantised(tensors: Tensors) -> Tensors:
        for index, name in enumerate([name for name in tensors if ".experts." in name]):
            scales[name] = 2.0 ** -(index % 5)
            tensors[name] = (tensors[name] / scales[name]).to(FP8)
            tensors[f"{name}_scale"] = torch.tensor(scales[name])
        return tensors

    changed(qwen, tmp_path, quantised)
    in_fp8(tmp_path)
    numbers = load_file(tmp_path / "model.safetensors")
    wide = {name: numbers[name].float() * scale for name, scale in scales.items()}
    check_experts(tmp_path, wide)


def in_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[E, out, in] -> in FP8, scales of blocks of 128 x 128, and the numbers that these make."""
    count, out, inputs = weight.shape
    scales = 0.001 + 0.001 * torch.rand(count, out // 128, inputs // 128)
    whole = scales.repeat_interleave(128, 1).repeat_interleave(128, 2)
    values = (weight / whole).to(FP8)
    return values, scales, values.float() * whole


@pytest.mark.parametrize(
    ("name", "by_inputs"),
    [("qwen3_moe", False), ("qwen3_vl_moe", False), ("qwen3_vl_moe", True)],
)
def test_stacked_experts_in_fp8_compute_as_their_numbers(
    tmp_path: Path, name: str, by_inputs: bool
) -> None:
    """Scales of blocks are cut and turned as the weights are."""
    tiny, hidden, inner = EXPERT_DECODERS[name], 384, 128
    sizes = {"hidden_size": hidden, "moe_intermediate_size": inner, "num_experts": 4}
    sizes |= {"head_dim": 16, "num_hidden_layers": 1}
    text = tiny.config.get("text_config")
    own = sizes if text is None else {"text_config": text | sizes}
    replace(tiny, config={**tiny.config, **own}).save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    layer = next(name for name in tensors if ".experts." in name).partition(".experts.")[0]
    tensors = without(r"\.experts\.")(tensors)
    wide: Tensors = {}
    for part, out, inputs in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
        values, scales, numbers = in_blocks(torch.randn(4, out, inputs) / 20)
        for kind, stack in (("", values), ("_scale_inv", scales)):
            turned = stack.transpose(1, 2).contiguous() if by_inputs else stack
            tensors[f"{layer}.experts.{part}_proj{kind}"] = turned
        for expert, its in enumerate(numbers):
            halves = zip(part.split("_"), its.chunk(2 if part == "gate_up" else 1), strict=True)
            wide |= {f"{FIRST}.{expert}.{half}_proj.weight": rows for half, rows in halves}
    save_file(tensors, tmp_path / "model.safetensors")
    in_fp8(tmp_path, weight_block_size=[128, 128])
    check_experts(tmp_path, wide)


def test_one_scale_for_an_expert_of_a_stack(qwen: Path, tmp_path: Path) -> None:
    """As transformers writes scales of whole tensors. Gate and up have one."""
    drawn = {"gate_up": 0.001 + torch.rand(8) / 100, "down": 0.001 + torch.rand(8) / 100}
    wide: Tensors = {}

    def quantised(tensors: Tensors) -> Tensors:
        for name in [name for name in tensors if ".experts." in name]:
            layer, expert, part = name.removesuffix("_proj.weight").rsplit(".", 2)
            stack = "down" if part == "down" else "gate_up"
            scale = drawn[stack][int(expert)]
            tensors[name] = (tensors[name] / scale).to(FP8)
            wide[name] = tensors[name].float() * scale
            tensors[f"{layer}.{stack}_proj_scale_inv"] = drawn[stack].view(8, 1, 1).clone()
            tensors[f"{layer}.{stack}_proj_activation_scale"] = torch.ones(8)
        return tensors

    changed(qwen, tmp_path, quantised)
    in_fp8(tmp_path, activation_scheme="static", weight_block_size=None)
    check_experts(tmp_path, wide)


class DummyStages(Stages):
    def _runner(self, config: WorkerConfig, backends: list[AttentionBackend]) -> DecodeRunner:
        config = with_execution(config, load_format="dummy")
        return DecodeRunner(config, load_share(config), backends, NUM_BLOCKS)


@pytest.mark.parametrize("name", EXPERT_DECODERS)
def test_dummy_routers_send_tokens_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Few rows touch as many of many experts, about, as by a uniform choice."""
    count, active, tokens = 64, 4, 48
    tiny = EXPERT_DECODERS[name]
    counts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    sizes = dict.fromkeys(counts, count)
    sizes |= {"num_experts_per_tok": active, "moe_k": active, "vocab_size": 999}
    if name.startswith("phimoe"):
        active = sizes["num_experts_per_tok"] = 2
    config = dict(tiny.config)
    text = config.get("text_config", config)
    wide = text | {key: value for key, value in sizes.items() if key in text}
    config = config | {"text_config": wide} if "text_config" in config else wide
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"architectures": [tiny.architecture]})
    )
    touched: list[int] = []
    real = Router.__call__

    def routed(router: Router, rows: torch.Tensor) -> Choice:
        choice = real(router, rows)
        touched.append(len(choice.experts.unique()))
        return choice

    stages = DummyStages(tmp_path)
    monkeypatch.setattr(Router, "__call__", routed)
    maker = StepMaker(stages.block_size, NUM_BLOCKS)
    row = maker.admit([31 * token % 999 for token in range(tokens)], prompt_logprobs=0)
    stages.run(maker.step([(row, tokens)], score=True))
    assert min(touched) > 0.55 * count * (1 - (1 - active / count) ** tokens)
