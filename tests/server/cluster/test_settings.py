"""What the settings of several hosts may be, and what `penstock config` and `join` make of them."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from server import cli
from server.cluster import ray_executor
from server.models.placement import Host
from tests.server.checkpoint_folders import LLAMA, write_checkpoint
from tests.server.conftest import Ended, Refused

SECRET = "0123456789abcdef-of-a-test"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(SECRET)
    return str(file)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_checkpoint(tmp_path / "model", LLAMA | {"num_hidden_layers": 3}))


NEEDED = ["--master", "127.0.0.1:7000", "--cluster-secret-file", "{secret}"]
TWO = ["--nodes", "2", "--pipeline-stages", "2", *NEEDED]


def test_config_shows_how_nodes_like_this_one_would_serve(
    model: str, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--nodes", "2", "--pipeline-stages", "3", "--device", "cpu", "--master", "[::1]:7000"]
    code = cli.main(
        ["config", model, *words, "--cluster-secret-file", secret, "--load-format", "dummy"]
    )
    text = capsys.readouterr().out
    shown = json.loads(text)
    assert code == 0
    keys = ("nodes", "master", "cluster_secret_file", "interface")
    assert [shown[key] for key in keys] == [2, "[::1]:7000", secret, None]
    engine = shown["models"][0]["engine"]
    assert engine["nodes"] == [0, 0, 1]
    assert engine["worker_endpoint"] == "tcp://[::1]:7001"
    assert engine["token_endpoint"] == "tcp://[::1]:7002"
    assert "cluster_keys" not in text
    assert SECRET not in text


def test_threads_are_for_the_host_with_the_fewest_cores_a_stage(
    model: str,
    secret: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = {"127.0.0.1": 10, "node 1": 4}
    monkeypatch.setattr(Host, "this_one", lambda address: Host(address, cores[address], ()))
    words = [word.format(secret=secret) for word in TWO]
    assert (
        cli.main(["config", model, *words, "--load-format", "dummy", "--pipeline-stages", "3"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["models"][0]["engine"]["threads"] == 4


RAY = ["--executor", "ray", "--nodes", "2", "--pipeline-stages", "3"]


def test_config_shows_how_ray_would_serve_and_asks_none(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = (80 << 30,) * 8
    monkeypatch.setattr(Host, "this_one", lambda address="": Host(address, 8, gpus))
    words = [*RAY, "--ray-address", "10.0.0.1:6379", "--load-format", "dummy"]
    assert cli.main(["config", model, *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [shown[key] for key in ("executor", "ray_address")] == ["ray", "10.0.0.1:6379"]
    engine = shown["models"][0]["engine"]
    assert [engine["devices"], engine["nodes"]] == [["cuda:0", "cuda:1", "cuda:0"], [0, 0, 1]]


def test_ray_that_is_not_installed(
    model: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(ray_executor, "distribution", missing)
    for command in ("config", "serve"):
        said = refused(command, model, *RAY, "--load-format", "dummy")
        assert "--executor: pip install 'penstock[ray]' for ray" in said


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--nodes", "2"], "--nodes: 2 nodes need --master and --cluster-secret-file"),
        (["--nodes", "2", *NEEDED[:2]], "--nodes: 2 nodes need --cluster-secret-file"),
        (NEEDED[:2], "--master: is for several hosts, and --nodes is 1"),
        (["--executor", "ray"], "--executor: ray is for several hosts, and --nodes is 1"),
        ([*RAY, *NEEDED[:2]], "--master: with --executor ray the master and the secret are found"),
        ([*RAY, *NEEDED[2:]], "--cluster-secret-file: with --executor ray the master and the"),
        ([*RAY, "--pipeline-stages", "1"], "--pipeline-stages: 1 stage for 2 nodes: each needs"),
        ([*RAY, "--interface", "ib9"], "--interface: this host has no interface ib9"),
        ([*RAY, "--device", "cuda:1"], "--device: cuda:1 is on one host"),
        (["{model}", *RAY], "--nodes: 2 nodes serve one model, not 2"),
        ([*TWO, "--ray-address", "10.0.0.1:6379"], "--ray-address: is for --executor ray"),
        (["--interface", "lo"], "--interface: is for several hosts, and --nodes is 1"),
        (["{model}", *TWO], "--nodes: 2 nodes serve one model, not 2"),
        ([*TWO, "--interface", "ib9"], "--interface: this host has no interface ib9"),
        ([*TWO, "--master", "127.0.0.1:65534"], "--master: the port of 127.0.0.1:65534 is not 1"),
        ([*TWO, "--cluster-secret-file", "/none"], "--cluster-secret-file: /none cannot be read"),
        (
            [*TWO, "--data-parallel-size", "2"],
            "--data-parallel-size: 2 copies are on one host; --nodes divide a single engine",
        ),
        ([*TWO, "--pipeline-stages", "1"], "--pipeline-stages: 1 stage for 2 nodes: each needs"),
        ([*TWO, "--device", "cuda:1"], "--device: cuda:1 is on one host"),
    ],
)
def test_settings_that_do_not_fit(
    model: str, secret: str, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(model=model, secret=secret) for word in words]
    named = ["--served-model-name", "a", "--served-model-name", "b"] if given[0] == model else []
    code = cli.main(["config", "--check", model, *given, *named, "--load-format", "dummy"])
    assert code == 1
    assert capsys.readouterr().err.startswith(f"penstock: error: {line}")


def test_a_file_names_its_keys(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(f"nodes: 2\nmaster: 127.0.0.1:7000\nmodels: [{{model: {model}}}]")
    assert cli.main(["config", "--config", str(file)]) == 1
    needed = f"{file}: nodes: 2 nodes need cluster_secret_file of {file}"
    assert capsys.readouterr().err == f"penstock: error: {needed}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--master and --cluster-secret-file must be given"),
        (NEEDED[:2], "--cluster-secret-file must be given"),
        (["--master", "10.0.0.1"], "'10.0.0.1' is not HOST:PORT, such as 10.0.0.1:7000"),
        (["--master", "fd00::1:7000"], "'fd00::1:7000' is not HOST:PORT"),
        (["--node-rank", "0"], "'0' is not a whole number above 0"),
    ],
)
def test_bad_usage_of_join(words: list[str], message: str, ended: Ended) -> None:
    assert message in ended(2, "join", *words)


def test_a_node_with_no_secret(tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o644)
    said = refused("join", "--master", "127.0.0.1:7000", "--cluster-secret-file", file)
    assert "others than its owner may read" in said
