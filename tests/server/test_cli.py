"""The command line: what it parses, what it refuses, and how fast and clearly it does so."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from server import __version__, cli
from server.settings import flags
from server.settings.settings import ModelSettings, ServeCommand, Settings, flag_name
from tests.server.checkpoint_folders import LLAMA, write_checkpoint, write_json
from tests.server.conftest import Ended, Refused
from tests.server.settings.everything import everything


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServeCommand]]:
    """What `serve` would have been asked for."""
    asked: list[ServeCommand] = []
    before = signal.getsignal(signal.SIGHUP)
    for serve in ("serve", "serve_on_ray"):
        monkeypatch.setattr(cli, serve, lambda command, _: asked.append(command) or 0)
    monkeypatch.setattr(cli.Master, "of", lambda _: None)
    monkeypatch.setattr(flags, "api_key_from", lambda: "from-the-environment")
    yield asked
    signal.signal(signal.SIGHUP, before)


def test_defaults(commands: list[ServeCommand]) -> None:
    assert cli.main(["serve"]) == 0
    (command,) = commands
    settings = command.settings
    assert [model.names for model in settings.models] == [("penstock-demo",), ("all-MiniLM-L6-v2",)]
    assert (settings.host, settings.port, settings.api_workers) == ("127.0.0.1", 8000, 1)
    assert command.api_key == "from-the-environment"
    assert settings == Settings(models=settings.models)
    for model in settings.models:
        assert model == ModelSettings(model=model.model, names=model.names)


def test_a_file_without_models_serves_the_demo_models(
    commands: list[ServeCommand], tmp_path: Path
) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("port: 9000")
    assert cli.main(["serve"]) == cli.main(["serve", "--config", str(file)]) == 0
    by_flags, by_file = (command.settings for command in commands)
    assert by_file == msgspec.structs.replace(by_flags, port=9000)


def test_the_demo_models_under_other_names(commands: list[ServeCommand]) -> None:
    names = ["--served-model-name", "chat, gpt-4o", "--served-model-name", "embed"]
    assert cli.main(["serve", *names]) == 0
    models = commands[0].settings.models
    assert [model.names for model in models] == [("chat", "gpt-4o"), ("embed",)]


EVERY_FLAG = (
    "{folder}/writer --served-model-name chat,gpt-4o --device cuda:1 --dtype bfloat16 --task embed "
    "--quantization fp8 --ignore-config-keys a,b.c --load-format dummy --attention-backend triton "
    "--pipeline-stages 2 --data-parallel-size 3 --stage-layers 9,8 --steps-ahead 0 "
    "--disable-cascade-attn --transport peer-memory --max-model-len 1000 --max-running 16 "
    "--max-step-tokens 512 --max-step-rows 64 --block-size 32 --kv-cache-dtype fp8 "
    "--kv-cache-memory 1.5GiB --threads 4 "
    "--default-model gpt-4o --host 0.0.0.0 --port 9000 --api-workers 2 --api-key k "
    "--api-key-file {folder}/keys --api-key-file /run/keys "
    "--tls-cert {folder}/tls/server.crt --tls-key /home/me/server.key "
    "--share-prefixes shop --share-prefixes all --cors-origin https://chat.example.org "
    "--cors-origin * --strict-fields --metrics-alias vllm --metrics-key --access-log json "
    "--otlp-traces-endpoint https://collector/v1/traces --max-sequences 20 --max-body-size 2MiB "
    "--max-unread-size 6MiB --vector-cache-size 7MiB --max-unread-seconds 9 --max-inputs 30 "
    "--max-documents 40 --max-n 50 "
    "--max-queue-seconds 60 --state-dir /home/me/state --max-file-size 1GiB --max-file-lines 70 "
    "--max-stored-size 2GiB --priority-range=-5:6 --max-priority-wait 4 --max-request-seconds 80 "
    "--memory-share 0.8 --executor ray --ray-address 10.0.0.1:6379 "
    "--nodes 2 --master [fd00::1]:7000 --cluster-secret-file {folder}/secret "
    "--interface eth1 --startup-timeout 60 --drain-timeout 1.5 --stall-timeout 45 "
    "--max-restarts 5 --log-level debug"
)


def test_every_flag_arrives(commands: list[ServeCommand], tmp_path: Path) -> None:
    """They say what the file does, but for what models have in the file alone."""
    assert cli.main(["serve", *EVERY_FLAG.format(folder=tmp_path).split()]) == 0
    (command,) = commands
    assert command.api_key == "k"
    of_file = everything(tmp_path)
    in_file_alone = dict.fromkeys(("memory_share", "max_queue_seconds", "rerank"))
    model = msgspec.structs.replace(of_file.models[0], **in_file_alone)
    assert command.settings == msgspec.structs.replace(of_file, models=(model,))


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("2GiB", 2 << 30), ("512 MB", 512_000_000), ("1k", 1000)]
)
def test_sizes(commands: list[ServeCommand], text: str, size: int) -> None:
    cli.main(["serve", "--kv-cache-memory", text])
    assert commands[0].settings.models[0].kv_cache_memory == size


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "65536"], "'65536' is not a port"),
        (["--port", "٣"], "'٣' is not a port"),
        (["--port", "9" * 5000], "is not a port"),
        (["--max-running", "9" * 5000], "is not a whole number above 0"),
        (["--kv-cache-memory", "9" * 400], "is not a size"),
        (["--startup-timeout", "9" * 400], "is not a number of seconds"),
        (["--api-key", "a b"], "a key is one or more visible ASCII characters"),
        (["--otlp-traces-endpoint", "grpc://x:4317"], "'grpc://x:4317' is not a URL for OTLP"),
        (["--cors-origin", "https://x/"], "'https://x/' is not an origin"),
        (["--cors-origin", "HTTPS://x"], "'HTTPS://x' is not an origin"),
        (["penstock.yaml"], "penstock.yaml is not a model; give a configuration file"),
        (["--config", "x", "--max-running", "2"], "--max-running: with --config, models come"),
        (["--config", "x", "--served-model-name", "a"], "--served-model-name: with --config"),
        (["--config", "x", "./llama"], "./llama: with --config, models come only from the file"),
        (["--pipeline-stages", "0"], "'0' is not a whole number above 0"),
        (["--data-parallel-size", "0"], "'0' is not a whole number above 0"),
        (["--stage-layers", "9,0"], "'9,0' is not a number of layers above 0 for each stage"),
        (["--stage-layers", ""], "'' is not a number of layers above 0 for each stage"),
        (["--steps-ahead", "2"], "'2' is neither 0 nor 1"),
        (["--transport", "tcp"], "invalid choice: 'tcp'"),
        (["--kv-cache-memory", "lots"], "'lots' is not a size, such as 2GiB"),
        (["--kv-cache-memory", "0"], "'0' is not a size"),
        (["--drain-timeout", "nan"], "'nan' is not a number of seconds"),
        (["--device", "tpu"], "'tpu' is not auto, cpu, cuda or cuda:N"),
        (["--served-model-name", "a"], "1 --served-model-name for 2 models"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--max-requests=9"], "--max-requests is gone: max_sequences bounds what is in flight"),
    ],
)
def test_bad_usage_exits_with_2(flags: list[str], message: str, ended: Ended) -> None:
    assert message in ended(2, "serve", *flags)


def test_the_version(ended: Ended) -> None:
    assert ended(0, "--version") == f"penstock {__version__}\n"


def test_help_names_every_setting_with_its_unit_and_default(ended: Ended) -> None:
    text = ended(0, "serve", "--help")
    found = re.findall(r"(?m)^  (--[a-z-]+)", text)
    keys = {*Settings.__struct_fields__, *ModelSettings.__struct_fields__} - {"models", "model"}
    in_files_alone = {"rerank"}  # a template of several texts
    assert {flag_name(key) for key in keys - in_files_alone} <= set(found)
    assert " ".join(text.split()).count("(default: ") == len(found) + 1  # and that of MODEL
    assert "--drain-timeout SECONDS" in text
    assert "penstock serve ./llama-3.1-8b" in text


@pytest.fixture
def not_served(refused: Refused) -> Refused:
    """The line in which a start is refused."""
    return partial(refused, "serve", "--port", 0)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "llama", LLAMA)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file(llama: Path, file: str, not_served: Refused) -> None:
    (llama / file).unlink()
    assert not_served(llama) == f"{file} is missing from {llama}"


def test_broken_checkpoints(llama: Path, not_served: Refused) -> None:
    (llama / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{")
    assert f"{llama / 'model.safetensors'} cannot be read" in not_served(llama)
    (llama / "tokenizer.json").write_text('{"model"')
    assert f"{llama / 'tokenizer.json'} cannot be read" in not_served(llama)
    write_json(llama / "config.json", LLAMA | {"architectures": ["BloomForCausalLM"]})
    assert "'BloomForCausalLM' is not supported; docs/models.md" in not_served(llama)
    (llama / "config.json").write_text("{")
    assert f"{llama / 'config.json'} cannot be read" in not_served(llama)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-model-len", "4096"], "--max-model-len: 4096 is more than the 128 tokens of llama"),
        (["--pipeline-stages", "3"], "llama has 2 layers, too few for 3 stages"),
        (["--stage-layers", "2,1", "--pipeline-stages", "2"],
         "--stage-layers: 2,1 are 3 layers, and llama has 2"),
        (["--stage-layers", "1,1"], "--stage-layers: 1,1 are 2 stages, and --pipeline-stages is 1"),
        (["--transport", "nccl", "--device", "cpu"],
         "--transport: nccl is between GPUs, and llama runs on cpu"),
        (["--device", "cuda:99"], "--device: this machine has "),
    ],
)  # fmt: skip
def test_flags_that_do_not_fit_the_model(
    llama: Path, flags: list[str], message: str, not_served: Refused
) -> None:
    assert message in not_served(llama, *flags)


def test_an_address_that_cannot_be_had(llama: Path, not_served: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = not_served(llama, "--port", port)
    assert message == f"--port: cannot listen on 127.0.0.1:{port}: Address already in use"
    nowhere = not_served(llama, "--host", "no.such.host.invalid")
    assert nowhere.startswith("--host: cannot listen on no.such.host.invalid: ")


def test_a_path_too_long_for_sockets(
    llama: Path, monkeypatch: pytest.MonkeyPatch, not_served: Refused
) -> None:
    """107 bytes are the most; a worker's own socket, with the longest PID, would have 108."""
    own = len("/penstock-????????/symm_mem-4194304")
    with TemporaryDirectory(dir="/tmp") as name:
        deep = Path(name, "x" * (108 - own - len(name) - 1))
        deep.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(deep))
        assert "too long a path for sockets; set TMPDIR" in not_served(llama)
        assert list(deep.iterdir()) == []


def test_the_command_line_stays_light() -> None:
    """`penstock` answers without torch and what serves; `penstock bench` alone imports
    `server.bench`, yet the help of `penstock` lists it. The environment has the API key."""
    code = """
import sys
import server.cli
import server.settings.flags

HEAVY = {"torch", "transformers", "fastapi", "starlette", "huggingface_hub"}
print(server.settings.flags.api_key_from())
assert not HEAVY & set(sys.modules)

def imports_bench(*arguments):
    try:
        server.cli.main(arguments)
    except SystemExit:
        pass
    return any(name.startswith("server.bench") for name in sys.modules)

for arguments in (["--help"], ["serve", "--help"], ["serve", "/no/model"], ["config"]):
    assert not imports_bench(*arguments), arguments
assert imports_bench("bench", "--help")
"""
    environment = dict(os.environ, PENSTOCK_API_KEY="secret")
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("secret\n")
    assert "measure speed and compare it" in ended.stdout
    assert "usage: penstock bench [-h] COMMAND ..." in ended.stdout
