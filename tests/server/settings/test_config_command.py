"""`penstock config`: the frozen configuration, from flags and from a file, and what cannot be."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from server import cli
from server.models.served_models import build_served_models
from server.settings.settings import ModelSettings, SettingNames, Settings
from tests.server.certificates import make_certificate
from tests.server.checkpoint_folders import BERT, LLAMA, write_checkpoint
from tests.server.conftest import Refused

GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_API_KEY", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models and somewhere to write a configuration."""
    write_checkpoint(tmp_path / "llama", LLAMA)
    write_checkpoint(tmp_path / "bert", BERT)
    return tmp_path


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 GiB each, for which torch is made."""
    for module in ("devices", "model_setup"):
        monkeypatch.setattr(f"server.models.{module}.cuda_memory", lambda: (80 * GIB,) * 2)
    monkeypatch.setattr("server.models.devices.version", lambda _: "2.13.0")


class Penstock:
    """`penstock config ARGUMENTS`, and what it says."""

    def __init__(self, capsys: pytest.CaptureFixture[str], refused: Refused, folder: Path) -> None:
        self._capsys, self._refused = capsys, refused
        self.file = folder / "penstock.yaml"

    def of_file(self, text: str, *arguments: str) -> dict[str, Any]:
        self.file.write_text(text)
        assert cli.main(["config", "--config", str(self.file), *arguments]) == 0
        return json.loads(self._capsys.readouterr().out)

    def refused(self, text: str, *arguments: str) -> str:
        """The line on what is wrong with a file, without its name."""
        self.file.write_text(text)
        line = self._refused("config", "--check", "--config", self.file, *arguments)
        return line.removeprefix(f"{self.file}: ")


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str], refused: Refused, folder: Path) -> Penstock:
    return Penstock(capsys, refused, folder)


def test_what_is_set_is_shown(penstock: Penstock, folder: Path) -> None:
    cert, key = make_certificate(folder)
    (folder / "keys").write_text("one\ntwo\n")
    shown = {"stage_layers": [1, 1], "steps_ahead": 0, "transport": "gloo"}
    own = {"device": "cpu", "pipeline_stages": 2, "kv_cache_memory": "1MiB"} | shown
    models = json.dumps([{"model": name} | own for name in ("llama", "./bert")])
    config = penstock.of_file(
        f"models: {models}\n"
        "port: 9000\napi_key_files: [keys]\ntls_cert: server.crt\ntls_key: server.key\n"
    )
    assert (config["port"], len(config["api_keys"])) == (9000, 2)
    assert config["tls"] == {"cert": str(cert), "key": str(key)}
    shown |= {"devices": ["cpu"] * 2, "kv_cache_bytes": 1 << 20}
    assert all(shown.items() <= each["engine"].items() for each in config["models"])


def test_flags_go_before_the_file(penstock: Penstock) -> None:
    text = "port: 1\nmax_sequences: 2\ncors_origins: [https://a]\nmodels: [{model: llama}]"
    config = penstock.of_file(text, "--port", "3", "--cors-origin", "https://b")
    assert (config["port"], config["cors_origins"]) == (3, ["https://b"])
    assert config["limits"]["max_sequences"] == 2


def test_traces_go_by_http_alone(penstock: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    """And need packages."""
    traces = "otlp_traces_endpoint: http://collector:4318/v1/traces\nmodels: [{model: llama}]"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    config = penstock.of_file(traces)
    assert config["otlp_traces_endpoint"] == "http://collector:4318/v1/traces"
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
    grpc = "OTEL_EXPORTER_OTLP_PROTOCOL is grpc; traces are sent by http/protobuf alone"
    assert penstock.refused(traces) == f"otlp_traces_endpoint: {grpc}"
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    missing = Mock(side_effect=PackageNotFoundError("opentelemetry"))
    monkeypatch.setattr("server.daemon.daemon.distribution", missing)
    install = "pip install 'penstock[otel]' to send traces"
    assert penstock.refused(traces) == f"otlp_traces_endpoint: {install}"


def test_an_engine_calls_its_settings_as_they_are_set(folder: Path) -> None:
    paths = [str(folder / name) for name in ("llama", "bert")]
    models = tuple(ModelSettings(device="cpu", model=path) for path in paths)
    of_file = SettingNames(file="a.yaml", flags=frozenset({"memory_share"}))
    of_model = "models[1].{} of a.yaml".format
    keys = ("kv_cache_memory", "memory_share", "stall_timeout")
    for names, expected in (
        (SettingNames(), ["--kv-cache-memory", "--memory-share", "--stall-timeout"]),
        (of_file, [*map(of_model, keys[:2]), "stall_timeout of a.yaml"]),
    ):
        execution = build_served_models(Settings(models=models), names, folder)[1].execution
        assert [execution.setting(key) for key in keys] == expected


def test_keys_are_not_shown(penstock: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock.file.with_name("keys").write_text("sesame\n")
    monkeypatch.setenv("PENSTOCK_API_KEY", "from-the-environment")
    config = penstock.of_file("models: [{model: llama}]\napi_key_files: [keys]")
    assert [key["digest"] for key in config["api_keys"]] == ["redacted", "redacted"]
    assert "cache_secret" not in config
    (key,) = penstock.of_file("models: [{model: llama}]")["api_keys"]
    assert key["digest"] == "redacted"


def test_aliases_and_default_names(penstock: Penstock) -> None:
    config = penstock.of_file("models: [{model: llama, names: [a, b, c]}, {model: ./bert/}]")
    names = [(model["name"], model["aliases"]) for model in config["models"]]
    assert names == [("a", ["b", "c"]), ("bert", [])]


def test_the_default_model_has_one_of_the_names(
    penstock: Penstock, folder: Path, refused: Refused
) -> None:
    text = "default_model: b\nmodels: [{model: llama, names: [a, b]}, {model: bert}]"
    assert penstock.of_file(text)["default_model"] == "b"
    assert penstock.of_file(text, "--default-model", "bert")["default_model"] == "bert"
    asked = ["config", folder / "llama", "--default-model", "gpt"]
    assert refused(*asked) == "--default-model: no model is called gpt (llama)"


def test_a_check_says_how_each_model_would_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [str(folder / "llama"), "--device", "cpu", "--threads", "1"]
    assert cli.main(["config", "--check", *model]) == 0
    assert capsys.readouterr().out == (
        "llama: LlamaForCausalLM, float32 on cpu, 1 stage of 1 thread, up to 128 tokens\n"
    )


def test_a_model_may_have_a_longest_wait_of_its_own(penstock: Penstock) -> None:
    models = "[{model: llama, max_queue_seconds: 0}, {model: bert, max_queue_seconds:}]"
    config = penstock.of_file(f"max_queue_seconds: 5\nmodels: {models}")
    assert [model["engine"]["max_queue_seconds"] for model in config["models"]] == [0, 5]


@pytest.mark.usefixtures("two_gpus")
def test_models_share_devices_as_they_are_told(penstock: Penstock) -> None:
    config = penstock.of_file(
        "memory_share: 0.8\n"
        "models:\n"
        "- {model: llama, names: [a], device: cuda:0, memory_share: 0.5}\n"
        "- {model: llama, names: [b], device: cuda:0}\n"
        "- {model: llama, names: [c], device: cuda:1}\n"
        "- {model: llama, names: [d], device: cpu}\n"
        "- {model: llama, names: [e], device: cuda, max_running: 9, dtype: float16}\n"
    )
    engines = [model["engine"] for model in config["models"]]
    devices = ["cuda:0", "cuda:0", "cuda:1", "cpu", "cuda:0"]
    assert [engine["devices"] for engine in engines] == [[device] for device in devices]
    shares = [share / (80 * GIB) for engine in engines for share in engine["memory_shares"]]
    assert shares == pytest.approx([0.5, 0.15, 0.8, 0.15])
    assert (engines[4]["max_running"], engines[4]["dtype"]) == (9, "float16")
    assert (engines[1]["max_running"], engines[1]["dtype"]) == (1024, "bfloat16")


@pytest.mark.usefixtures("two_gpus")
def test_a_pipeline_shares_each_of_its_gpus(penstock: Penstock) -> None:
    """Its parts of both are as large as the part of the GPU on which it is not alone."""
    config = penstock.of_file(
        "models:\n"
        "- {model: llama, names: [a], device: cuda:0, pipeline_stages: 2}\n"
        "- {model: llama, names: [b], device: cuda:1, memory_share: 0.3}\n"
        "- {model: bert, device: cuda:1}\n"
    )
    a, b, c = [model["engine"] for model in config["models"]]
    assert (a["devices"], b["devices"]) == (["cuda:0", "cuda:1"], ["cuda:1"])
    shares = [share / (80 * GIB) for engine in (a, b, c) for share in engine["memory_shares"]]
    assert shares == pytest.approx([0.3] * 4)


@pytest.mark.usefixtures("two_gpus")
def test_copies_are_on_the_next_gpus_and_take_their_share_of_each(penstock: Penstock) -> None:
    config = penstock.of_file(
        "models:\n"
        "- {model: llama, names: [a], data_parallel_size: 2}\n"
        "- {model: llama, names: [b], device: cuda:1, memory_share: 0.3}\n"
    )
    a, b = config["models"]
    (copy,) = a["copies"]
    assert [engine["devices"] for engine in (a["engine"], copy)] == [["cuda:0"], ["cuda:1"]]
    assert [engine["copy"] for engine in (a["engine"], copy, b["engine"])] == [0, 1, None]
    shares = [engine["memory_shares"][0] / (80 * GIB) for engine in (a["engine"], copy)]
    assert shares == pytest.approx([0.6, 0.6])
    differing = {key for key, value in copy.items() if value != a["engine"][key]}
    endpoints = {"client_endpoint", "worker_endpoint", "token_endpoint", "start"}
    assert differing == endpoints | {"copy", "devices"}
    assert b["copies"] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [{model: llama}, {model: llama}]",
         "models[1].names: two models are called llama"),
        ("models: [{model: llama, names: [a, b]}, {model: bert, names: [c, a]}]",
         "models[1].names: two models are called a"),
        ("default_model: gpt\nmodels: [{model: llama, names: [a, b]}, {model: bert}]",
         "default_model: no model is called gpt (a, b, bert)"),
        ("models: [{model: llama, names: [a, a]}]", "models[0].names: two models are called a"),
        ("models: [{model: llama, names: [' ']}]", "models[0].names: ' ' is not a name"),
        ("models: [{model: llama, names: [\"a\\tb\"]}]", "models[0].names: 'a\\tb' is not a name"),
        ("models: [{model: llama}, {model: ./gone}]", "models[1].model: there is no folder "),
        ("models: [{model: llama, max_model_len: 4096}]",
         "models[0].max_model_len: 4096 is more than the 128 tokens of llama"),
        ("models: [{model: llama, device: cpu, stage_layers: [1, 1]}]",
         "models[0].stage_layers: 1,1 are 2 stages, and models[0].pipeline_stages of "),
        ("models: [{model: llama, transport: gloo}]",
         "models[0].transport: gloo is between CPUs, and llama runs on cuda"),
        ("models: [{model: llama, device: cuda:1, pipeline_stages: 2}]",
         "models[0].device: this machine has 2 CUDA devices, not cuda:1 to cuda:2"),
        ("models: [{model: llama, data_parallel_size: 2, pipeline_stages: 2}]",
         "models[0].data_parallel_size: 2 copies have a device for each stage: this machine has"),
        ("models:\n- {model: llama, device: cuda, memory_share: 0.6}\n- {model: bert}\n"  # noqa: ISC004
         "- {model: llama, names: [b], device: cuda:0, memory_share: 0.5}",
         "models[0].memory_share, models[2].memory_share: 1.1 of cuda:0, more than all of it"),
        ("memory_share: 0.5\nmodels: [{model: llama, memory_share: 0.5}, {model: bert}]",
         "models[0].memory_share: 0.5 of cuda:0, nothing of 0.5 is left to others"),
        ("models: [{model: llama, device: cuda, memory_share: 0.000000001}]",
         "models[0].memory_share: stage 0 of llama has 0.0 GiB of weights and 0.0 GiB of buffers"),
        ("tls_cert: a\nmodels: [{model: llama}]", "tls_cert: there is no key beside it"),
        ("tls_key: a\nmodels: [{model: llama}]", "tls_key: there is no certificate beside it"),
        ("tls_cert: a\ntls_key: b\nmodels: [{model: llama}]", "tls_cert: "),
        ("api_key_files: [gone]\nmodels: [{model: llama}]", "api_key_files: "),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("two_gpus")
def test_what_cannot_be_is_named_by_its_key(penstock: Penstock, text: str, message: str) -> None:
    assert penstock.refused(text).startswith(message)


def test_what_a_flag_breaks_is_named_by_the_flag(penstock: Penstock, folder: Path) -> None:
    cert, _ = make_certificate(folder)
    text = f"tls_cert: {cert}\nmodels: [{{model: llama}}]"
    assert penstock.refused(text, "--tls-key", "gone").startswith("--tls-key: gone cannot be read")


def test_a_bad_key_in_the_environment_is_not_shown(
    penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", "open sesame")
    line = penstock.refused("models: [{model: llama}]")
    assert line == "PENSTOCK_API_KEY: a key is one or more visible ASCII characters"
