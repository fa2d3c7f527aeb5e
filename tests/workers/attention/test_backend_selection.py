"""Which attention backend is chosen, and what is said where one cannot be."""

import dataclasses
import logging
from typing import Any, ClassVar

import pytest
import torch

from tests.workers.attention_problems import attention_needs, paged_step
from workers.attention import backend_selection
from workers.attention.backend_selection import (
    AttentionBackendError,
    Probe,
    implementations,
    select_backend,
    select_backends,
    unmet_need,
)
from workers.attention.backends.naive import NaiveBackend
from workers.attention.backends.sdpa import SdpaBackend
from workers.attention.base import (
    QKV,
    AttentionBackend,
    AttentionNeeds,
    Capabilities,
    LayerCache,
)
from workers.contract.attention_backends import AttentionBackendName
from workers.contract.model_config import DisentangledBias, PositionBias
from workers.device.choices import Choices
from workers.device.timing import Stopwatch
from workers.step.paged_step import PagedStep

ON_GPU = {"device": "cuda:0", "dtype": torch.bfloat16, "head_dim": 128, "block_size": 16}


def refused(name: str, **changes: Any) -> str:
    with pytest.raises(AttentionBackendError) as error:
        select_backend(name, attention_needs(**changes), Choices())
    message = str(error.value)
    assert "\n" not in message
    return message


def test_what_no_backend_can_do_is_refused() -> None:
    message = refused("auto", dtype=torch.int8)
    assert "torch.int8" in message
    assert "no other would do" in message
    assert "for device 'tpu'" in refused("sdpa", device="tpu:0")
    assert "'auto' cannot do causal paged attention on 'tpu:0'" in refused("auto", device="tpu:0")


@pytest.mark.parametrize("member", AttentionBackendName)
def test_a_message_has_the_name_of_the_setting(member: AttentionBackendName) -> None:
    assert refused(member, device="tpu:0").startswith(f"attention backend '{member.value}' cannot")


@pytest.mark.parametrize(
    ("name", "head_dim", "expected"),
    [
        (
            "flash_attn",
            200,
            [
                "flash_attn4: head size 200 is not supported",
                "flash_attn3: package flash-attn-3 is not installed",
                "flash_attn2: block size 16 is no multiple of 256",
            ],
        ),
        ("flash_attn", 128, ["package flash-attn-4 is not installed", "triton, sdpa, naive"]),
        ("flashinfer", 128, ["package flashinfer-python is not installed", "triton, sdpa, naive"]),
    ],
)
def test_each_implementation_says_why_it_does_not_fit_and_what_would_do(
    monkeypatch: pytest.MonkeyPatch, name: str, head_dim: int, expected: list[str]
) -> None:
    monkeypatch.setattr(backend_selection, "distributions", lambda name: [])
    message = refused(name, **ON_GPU | {"head_dim": head_dim})
    assert all(part in message for part in expected)


CUDA_ONLY = Capabilities(
    causal_paged=True,
    bidirectional=False,
    graph_safe=True,
    devices=("cuda",),
    dtypes=(torch.bfloat16,),
    head_dims=(64, 128),
    page_multiple=32,
    compute_majors=(8, 9),
    requires=("torch", "pip install torch"),
)
BIAS = PositionBias(num_buckets=32, max_distance=128)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"paged": False}, "no bidirectional attention"),
        ({"window": 8}, "no windows"),
        ({"softcap": 30.0}, "no softcap"),
        ({"sinks": True}, "no attention sinks"),
        ({"head_dim": 80}, "head size 80 is not supported"),
        ({"block_size": 48}, "block size 48 is no multiple of 32"),
        ({}, "the GPU's compute capability 7.5 is none of 8.x, 9.x"),
    ],
)
def test_a_need_that_is_not_met_is_named(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    needs = ON_GPU | {"block_size": 64}
    assert unmet_need(CUDA_ONLY, attention_needs(**needs | changes)) == expected
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert unmet_need(CUDA_ONLY, attention_needs(**needs)) == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="FlashAttention 4 reads it by a scratch")
@pytest.mark.parametrize("name", ["flash_attn", "flashinfer"])
def test_a_backend_that_reads_no_fp8_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    message = refused(name, **ON_GPU, fp8_cache=True)
    assert message.startswith(f"attention backend '{name}' cannot")
    assert "not for an FP8 KV cache (kv_cache_dtype)" in message
    assert message.endswith("these would do: triton, sdpa, naive")


def test_fp8_needs_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    able, needs = SdpaBackend.capabilities, attention_needs(**ON_GPU, fp8_cache=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert unmet_need(able, needs).startswith("the GPU's compute capability 8.0 has no FP8")
    assert unmet_need(able, dataclasses.replace(needs, fp8_cache=False)) == ""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert unmet_need(able, needs) == ""


@pytest.mark.parametrize(
    ("lost", "paged", "expected"),
    [
        ("causal_windows", True, "no windows"),
        ("causal_windows", False, ""),
        ("bidirectional_windows", True, ""),
        ("bidirectional_windows", False, "no windows"),
        ("position_bias", False, "no position bias"),
        ("graph_safe", False, ""),
    ],
)
def test_capabilities_are_those_of_the_kind_of_attention(
    lost: str, paged: bool, expected: str
) -> None:
    less = dataclasses.replace(NaiveBackend.capabilities, **{lost: False})
    bias = {} if paged else {"position_bias": BIAS}
    assert unmet_need(less, attention_needs(paged=paged, window=8, **bias)) == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_disentangled_attention_is_for_backends_that_can(device: str) -> None:
    needs = attention_needs(
        paged=False, device=device, position_bias=DisentangledBias(span=16, max_distance=64)
    )
    able = [
        name.value
        for name in AttentionBackendName
        if name.implementations
        and any(not unmet_need(each.capabilities, needs) for each in implementations(name.value))
    ]
    assert able == ["sdpa", "naive"]
    less = dataclasses.replace(NaiveBackend.capabilities, disentangled=False)
    assert unmet_need(less, needs) == "no disentangled attention"


def test_each_kind_of_layer_has_a_backend_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _table(monkeypatch, encoders="OnlyEncoders", first="Usable")
    caplog.set_level(logging.INFO)
    kinds = [attention_needs(**ON_GPU), attention_needs(**ON_GPU, window=8)]
    full, windowed = select_backends("auto", kinds, Choices())
    assert full is not windowed
    for kind in ("", " with window"):
        assert f"attention backend first for causal paged attention{kind}" in caplog.messages


class Usable(NaiveBackend):
    """A backend that fits a GPU by what it declares."""


class Unusable(NaiveBackend):
    """One that fails in the probe."""


class OnlyEncoders(NaiveBackend):
    capabilities = Capabilities(
        causal_paged=False,
        bidirectional=True,
        graph_safe=False,
        devices=("cuda",),
        dtypes=(torch.bfloat16,),
    )


class NotFinite(NaiveBackend):
    def attend_paged(self, qkv: QKV, cache: LayerCache, plan: Any, **_: Any) -> torch.Tensor:
        return torch.full_like(qkv.queries, torch.nan)


class Again(Usable):
    """Another implementation, under a name of its own."""


class FakeProbe:
    """The probe without a GPU: `Unusable` fails as it does there, and others take their time."""

    MILLISECONDS: ClassVar = {"Usable": (2.0, 3.0), "Again": (1.0, 7.0)}

    def __init__(self, needs: AttentionNeeds) -> None:
        self.needs = needs

    def run(self, implementation: type[Any]) -> AttentionBackend:
        if implementation.__name__ == "Unusable":
            raise RuntimeError("ptxas\nfails")
        return implementation(self.needs)

    def times(self, backend: AttentionBackend, _: Stopwatch) -> dict[str, float]:
        times = self.MILLISECONDS[type(backend).__name__]
        return {kind: ms / 1e3 for kind, ms in zip(("decode", "chunks"), times, strict=True)}


def _table(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    paths = {
        name: tuple(f"{__name__}:{each}" for each in classes.split())
        for name, classes in names.items()
    }
    monkeypatch.setattr(backend_selection, "_BACKENDS", paths)
    monkeypatch.setattr(backend_selection, "_AUTO", {"cuda": tuple(names)})
    monkeypatch.setattr(backend_selection, "Probe", FakeProbe)


def test_the_fastest_is_chosen_and_the_times_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _table(monkeypatch, encoders="OnlyEncoders", second="Again", first="Usable")
    caplog.set_level(logging.INFO)
    chosen = select_backend("auto", attention_needs(**ON_GPU), Choices())
    assert type(chosen).__name__ == "Usable"
    times, line = caplog.messages
    assert line == "attention backend first for causal paged attention"
    assert "second decode 1000 µs, chunks 7000 µs; first decode 2000 µs, chunks 3000 µs" in times


def test_equally_fast_backends_go_by_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProbe, "MILLISECONDS", dict.fromkeys(("Usable", "Again"), (1.0, 1.0)))
    _table(monkeypatch, preferred="Again", other="Usable")
    assert type(select_backend("auto", attention_needs(**ON_GPU), Choices())).__name__ == "Again"


@pytest.mark.parametrize(
    ("name", "table", "chosen"),
    [
        ("auto", {"broken": "Unusable", "other": "Usable"}, "Usable"),
        ("generations", {"generations": "Unusable Again Usable", "other": "Usable"}, "Again"),
    ],
)
def test_one_that_fails_gives_way_to_the_next_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    table: dict[str, str],
    chosen: str,
) -> None:
    _table(monkeypatch, **table)
    assert type(select_backend(name, attention_needs(**ON_GPU), Choices())).__name__ == chosen
    (warning,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "fails: RuntimeError: ptxas fails" in warning.getMessage()


@pytest.mark.parametrize(
    ("name", "others", "end"),
    [("broken", {"other": "Usable"}, "these would do: other"), ("auto", {}, "no other would do")],
)
def test_where_all_that_was_asked_for_fails_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, others: dict[str, str], end: str
) -> None:
    _table(monkeypatch, broken="Unusable", **others)
    message = refused(name, **ON_GPU)
    assert f"attention backend '{name}' fails on 'cuda:0'" in message
    assert "RuntimeError: ptxas fails" in message
    assert message.endswith(end)


def test_on_a_cpu_nothing_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_selection, "Probe", None)
    assert isinstance(select_backend("auto", attention_needs(), Choices()), SdpaBackend)
    assert isinstance(select_backend("naive", attention_needs(), Choices()), NaiveBackend)


def test_a_probe_takes_nothing_that_is_not_finite() -> None:
    with pytest.raises(ArithmeticError, match="decode: not finite"):
        Probe(attention_needs(head_dim=16)).run(NotFinite)


@pytest.mark.parametrize("paged", [True, False])
def test_the_probe_steps_are_what_backends_take(
    paged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every place of the steps is right: `sdpa` and `naive` read them independently."""
    rows = {"decode": [(31, 1), (40, 1)] * 2, "chunk": [(64, 64)], "short prompts": [(0, 5)] * 9}
    monkeypatch.setattr(backend_selection, "_PAGED", rows)
    texts = {"long texts": [(0, 99)] * 3, "short texts": [(0, 7)] * 20}
    monkeypatch.setattr(backend_selection, "_BIDIRECTIONAL", texts)
    needs = attention_needs((2, 2, 16), paged=paged, block_size=16)
    probe = Probe(needs)
    for step in probe.steps.values():
        if isinstance(step, PagedStep):
            _assert_consistent(step, needs.block_size)
        naive, sdpa = (
            probe.attend(backend(needs), step)() for backend in (NaiveBackend, SdpaBackend)
        )
        assert naive.std() > 0.01
        torch.testing.assert_close(sdpa, naive, atol=5e-6, rtol=0)


def _assert_consistent(step: PagedStep, block_size: int) -> None:
    rows = [*zip((step.contexts - step.query_lens).tolist(), step.query_lens.tolist(), strict=True)]
    expected = paged_step(rows, step.block_tables[step.slots].tolist(), block_size, "cpu")
    for name in ("positions", "kv_indices", "query_starts", "context_lens"):
        assert torch.equal(getattr(step, name), getattr(expected, name))
    assert len(step.kv_indices.unique()) == step.num_tokens
