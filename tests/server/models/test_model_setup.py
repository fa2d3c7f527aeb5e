"""A model's folder and the command line's options → the configuration of its engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.models.model_source import SetupError
from tests.server import support
from tests.server.checkpoint_folders import BERT, LLAMA, LLAMA_8B, write_checkpoint
from workers.contract.config import ExecutionConfig, WorkerConfig

GIB = 1 << 30
Gpus = Callable[..., None]


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """A machine of eight cores, with CUDA devices of the bytes that a test calls it with."""
    monkeypatch.setattr("server.models.model_setup.available_cores", lambda: 8)

    def set_gpus(*memory: int) -> None:
        for module in ("devices", "model_setup"):
            monkeypatch.setattr(f"server.models.{module}.cuda_memory", lambda: memory)

    set_gpus()
    return set_gpus


def set_up(folder: Path, config: dict[str, Any], **options: Any) -> ExecutionConfig:
    path = folder / "model"
    if not path.exists():
        write_checkpoint(path, config)
    return support.set_up(path, **{"device": "auto"} | options).execution


def test_a_generator_on_a_cpu(tmp_path: Path) -> None:
    execution = set_up(tmp_path, LLAMA)
    expected = ("generate", ("cpu",), "float32")
    assert (execution.task, execution.devices, execution.dtype) == expected
    lengths = execution.max_model_len, execution.max_running, execution.max_step_tokens
    assert (execution.threads, *lengths) == (8, 128, 64, 512)
    # 64 sequences of 128 tokens, keys and values, 2 layers, 2 heads of 8 floats.
    assert execution.kv_cache_bytes == 64 * 128 * 2 * 2 * 2 * 8 * 4


def test_an_encoder_has_no_kv_cache(tmp_path: Path) -> None:
    execution = set_up(tmp_path, BERT)
    limits = execution.max_step_tokens, execution.kv_cache_bytes
    assert (execution.task, *limits) == ("embed", 2048, 0)


def test_options_win(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "dtype": "bfloat16",
        "threads": 3,
        "max_model_len": 100,
        "max_running": 5,
        "max_step_tokens": 64,
        "max_step_rows": 16,
        "block_size": 8,
        "attention_backend": "naive",
        "stage_layers": (2,),
        "steps_ahead": 0,
        "transport": "gloo",
        "log_level": "debug",
    }
    execution = set_up(tmp_path, LLAMA, kv_cache_memory=12_345, **options)
    assert execution.kv_cache_bytes == 12_345
    assert {name: getattr(execution, name) for name in options} == options


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3"])
def test_a_cache_in_fp8(tmp_path: Path, name: str) -> None:
    """A byte a number, and four for the scales of a token's head."""
    execution = set_up(tmp_path, LLAMA, kv_cache_dtype=name)
    assert (execution.dtype, execution.cache_dtype) == ("float32", "fp8_e4m3")
    assert execution.kv_cache_bytes == 64 * 128 * 2 * 2 * (2 * 8 + 4)
    assert set_up(tmp_path / "encoder", BERT, kv_cache_dtype=name).cache_dtype == "float32"


def test_a_checkpoint_says_that_its_cache_is_in_fp8(tmp_path: Path) -> None:
    declared = LLAMA | {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "dense",
            "config_groups": {},
            "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"},
        }
    }
    assert set_up(tmp_path, declared).cache_dtype == "fp8_e4m3"
    assert set_up(tmp_path, declared, kv_cache_dtype="float32").cache_dtype == "float32"


def test_a_cache_in_another_dtype_than_the_models_is_refused(tmp_path: Path) -> None:
    assert set_up(tmp_path, LLAMA, kv_cache_dtype="float32").cache_dtype == "float32"
    message = "bfloat16 is not what the model computes with, float32; auto, float32 or fp8 would do"
    with pytest.raises(SetupError, match=message) as error:
        set_up(tmp_path, LLAMA, kv_cache_dtype="bfloat16")
    assert error.value.key == "kv_cache_dtype"


def test_stages_share_cores_and_the_cache_is_as_large_as_the_largest_needs(tmp_path: Path) -> None:
    config = LLAMA | {"num_hidden_layers": 5}
    one, even = (set_up(tmp_path, config, pipeline_stages=p) for p in (1, 2))
    given = set_up(tmp_path, config, pipeline_stages=2, stage_layers=(4, 1))
    assert (one.threads, even.threads) == (8, 4)
    a_layer = one.kv_cache_bytes // 5
    assert (even.kv_cache_bytes, given.kv_cache_bytes) == (3 * a_layer, 4 * a_layer)
    long = LLAMA | {"max_position_embeddings": 131_072, "num_hidden_layers": 16}
    assert set_up(tmp_path / "long", long).kv_cache_bytes == GIB


def test_engines_of_a_daemon_have_sockets_of_their_own(tmp_path: Path) -> None:
    engine = support.set_up(write_checkpoint(tmp_path / "model", LLAMA)).engine
    execution = engine.execution
    endpoints = {engine.client_endpoint, execution.worker_endpoint, execution.token_endpoint}
    assert len(endpoints) == 3
    assert all(endpoint.startswith(f"ipc://{tmp_path}/0.") for endpoint in endpoints)
    assert execution.start == f"{tmp_path}/0"


@pytest.mark.parametrize(
    ("written", "dtype"),
    [("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")],
)
def test_cuda_takes_the_checkpoints_half_precision(
    tmp_path: Path, gpus: Gpus, written: str, dtype: str
) -> None:
    gpus(80 * GIB, 80 * GIB)
    execution = set_up(tmp_path, LLAMA | {"torch_dtype": written}, device="cuda")
    assert (execution.devices, execution.dtype) == (("cuda:0",), dtype)


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, (int(0.9 * 80 * GIB),)),
        ({"memory_share": 0.5}, (40 * GIB,)),
        ({"memory_share": 0.5, "pipeline_stages": 2}, (40 * GIB, 24 * GIB)),
        ({"kv_cache_memory": 12_345}, ()),  # which is not measured
    ],
)
def test_an_engine_takes_its_share_of_each_of_its_gpus(
    tmp_path: Path, gpus: Gpus, options: dict[str, Any], shares: tuple[int, ...]
) -> None:
    gpus(80 * GIB, 48 * GIB)
    execution = set_up(tmp_path, LLAMA, device="cuda", **options)
    assert execution.memory_shares == shares
    assert execution.kv_cache_bytes == options.get("kv_cache_memory", 0)
    workers = [WorkerConfig(execution=execution, stage=stage) for stage in range(len(shares))]
    assert tuple(worker.memory_share for worker in workers) == shares


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        ({"max_restarts": 3}, True),
        ({"max_restarts": 3, "kv_cache_memory": 1 << 30}, True),
        ({}, False),
        ({"max_restarts": 3, "device": "cpu"}, False),
        # Then the weights that were read are not those that are computed with.
        ({"max_restarts": 3, "quantization": "fp8"}, False),
    ],
)
def test_weights_are_kept_where_a_stage_can_map_them(
    tmp_path: Path, gpus: Gpus, options: dict[str, Any], *, keeps: bool
) -> None:
    gpus(80 * GIB)
    own = {"device": "cuda", "load_format": "dummy"} | options
    assert set_up(tmp_path, LLAMA, **own).keeps_weights is keeps


def test_weights_are_not_kept_where_little_would_be_left(
    tmp_path: Path, gpus: Gpus, caplog: pytest.LogCaptureFixture
) -> None:
    gpus(20 * GIB)
    own = {"device": "cuda", "load_format": "dummy", "max_restarts": 3}
    assert not set_up(tmp_path, LLAMA_8B, **own).keeps_weights
    (line,) = caplog.messages
    assert line.startswith("a lost stage of m will load its weights anew: stage 0 has less than 4 ")
    gpus(80 * GIB)
    assert set_up(tmp_path, LLAMA_8B, **own).keeps_weights


def test_the_stage_that_does_not_fit_is_named(tmp_path: Path, gpus: Gpus) -> None:
    """15.0 GiB of weights, of which the embedding and the LM head are 1 GiB each."""
    gpus(10 * GIB, 10 * GIB)
    options = {"device": "cuda", "load_format": "dummy", "pipeline_stages": 2}
    assert set_up(tmp_path, LLAMA_8B, **options).num_stages == 2
    with pytest.raises(SetupError) as caught:
        set_up(tmp_path, LLAMA_8B, **options, stage_layers=(12, 20))
    assert str(caught.value) == (
        "--memory-share: stage 1 of m has 9.1 GiB of weights and 0.3 GiB of buffers between "
        "stages, more than its share of cuda:1: 9.0 of 10.0 GiB; raise it, or use more stages "
        "or weights of fewer bits"
    )
    with pytest.raises(SetupError, match=r"stage 0 of m has .* and 1\.5 GiB of buffers"):
        set_up(tmp_path, LLAMA_8B, **options, max_step_tokens=40_000)  # in five slots


def test_each_stage_has_a_gpu(tmp_path: Path, gpus: Gpus) -> None:
    gpus(*(80 * GIB,) * 3)
    execution = set_up(tmp_path, LLAMA, device="cuda:1", pipeline_stages=2)
    assert execution.devices == ("cuda:1", "cuda:2")
    workers = [WorkerConfig(execution=execution, stage=stage) for stage in range(2)]
    assert [worker.gpus for worker in workers] == [execution.devices] * 2
    assert [worker.local_device for worker in workers] == ["cuda:0", "cuda:1"]
    assert execution.max_running == 2048


def test_dynamic_scaling_makes_no_texts_longer(tmp_path: Path) -> None:
    config = LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}
    assert set_up(tmp_path, config).max_model_len == 128


@pytest.mark.parametrize(
    ("torch_version", "devices", "expected"),
    [("2.13.0", 1, "cuda:0"), ("2.13.0+cpu", 1, "cpu"), ("2.13.0+cu130", 0, "cpu")],
)
def test_auto_is_cuda_where_torch_can_use_one(
    tmp_path: Path,
    gpus: Gpus,
    monkeypatch: pytest.MonkeyPatch,
    torch_version: str,
    devices: int,
    expected: str,
) -> None:
    gpus(*(80 * GIB,) * devices)
    monkeypatch.setattr("server.models.devices.version", lambda _: torch_version)
    assert set_up(tmp_path, LLAMA).devices == (expected,)
    if expected != "cpu":  # which is no way out where GPUs are too few
        with pytest.raises(SetupError, match=r"has 1 CUDA devices, not cuda:0 to cuda:1$"):
            set_up(tmp_path, LLAMA, pipeline_stages=2)


@pytest.mark.parametrize("transport", ["auto", "peer-memory", "nccl"])
def test_gpus_pass_on_activations_in_two_ways(tmp_path: Path, gpus: Gpus, transport: str) -> None:
    gpus(*(80 * GIB,) * 2)
    options = {"device": "cuda", "pipeline_stages": 2, "transport": transport}
    assert set_up(tmp_path, LLAMA, **options).transport == transport
    with pytest.raises(SetupError, match=r"--transport: gloo is between CPUs, and m runs on cuda$"):
        set_up(tmp_path, LLAMA, **options | {"transport": "gloo"})


def test_a_task_that_is_asked_for_is_obeyed_or_refused(tmp_path: Path) -> None:
    assert set_up(tmp_path / "one", LLAMA, task="embed").task == "embed"
    with pytest.raises(SetupError, match=r"BertModel cannot generate; it can embed$") as refused:
        set_up(tmp_path / "other", BERT, task="generate")
    assert refused.value.key == "task"
