"""What the chart's containers run, on this machine: the daemon, `helm test`, the prefetch Job and
the wait for it. Paths in the image are replaced by the test's own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.deploy.helm import Helm4, Manifest
from tests.e2e.daemon import Daemon
from tests.server.certificates import make_certificate

KEYS = "# of the test\nsecret\n"
CONFIG = "/etc/penstock/config/penstock.yaml"
HUB_ID = "acme/generator"


def of_kind(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    """The one object of a kind whose name ends so."""
    (found,) = (
        each
        for each in manifests
        if each["kind"] == kind and each["metadata"]["name"].endswith(name)
    )
    return found


def run(container: dict[str, Any], paths: dict[str, str], **more: str) -> tuple[int, str]:
    """A container's command with its environment: the exit code, and what it wrote."""
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    words = [*container.get("command", []), *container.get("args", [])]
    for path, own in paths.items():
        words = [word.replace(path, own) for word in words]
    done = subprocess.run(
        words,
        env=programs | environment | more,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def release(helm4: Helm4) -> list[Manifest]:
    return helm4.template({"auth": {"existingSecret": "keys"}, "tls": {"existingSecret": "tls"}})


@pytest.fixture(scope="module")
def daemon(release: list[Manifest], tmp_path_factory: pytest.TempPathFactory) -> Generator[Daemon]:
    """With the release's configuration, keys and TLS."""
    folder = tmp_path_factory.mktemp("etc")
    for name in ("config", "keys", "tls"):
        (folder / name).mkdir()
    config = of_kind(release, "ConfigMap", "-config")["data"]["penstock.yaml"]
    for path in ("/etc/penstock", "/var/lib/penstock"):
        config = config.replace(path, str(folder))
    (folder / "config" / "penstock.yaml").write_text(config)
    (folder / "keys" / "api-keys").write_text(KEYS)
    make_certificate(folder / "tls", "tls")
    daemon = Daemon("--config", f"{folder}/config/penstock.yaml", "--host", "127.0.0.1")
    try:
        yield daemon.wait_ready()
    finally:
        daemon.end()


def helm_test(release: list[Manifest], daemon: Daemon, **more: str) -> tuple[int, str]:
    """`helm test` against the daemon in place of the Service."""
    (container,) = of_kind(release, "Pod")["spec"]["containers"]
    (given,) = (each["value"] for each in container["env"] if each["name"] == "DAEMONS")
    targets = [each | {"url": daemon.url} for each in json.loads(given)]
    return run(container, {}, **{"DAEMONS": json.dumps(targets), "API_KEYS": KEYS} | more)


def test_helm_test_asks_each_model(release: list[Manifest], daemon: Daemon) -> None:
    code, text = helm_test(release, daemon)
    assert code == 0, text
    assert f"/v1/completions of {GENERATOR_NAME}: fine" in text
    assert "/v1/embeddings of all-MiniLM-L6-v2: fine" in text


def test_helm_test_fails_without_the_key(release: list[Manifest], daemon: Daemon) -> None:
    code, _ = helm_test(release, daemon, API_KEYS="")
    assert code == 1


def test_helm_test_fails_if_another_model_is_served(
    release: list[Manifest], daemon: Daemon
) -> None:
    targets = json.dumps([{"url": daemon.url, "models": ["chat"]}])
    code, text = helm_test(release, daemon, DAEMONS=targets)
    assert code == 1
    assert f"serves ['{GENERATOR_NAME}', 'all-MiniLM-L6-v2'], not ['chat']" in text


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """A claim with a cache of the hub's client that holds one model."""
    cached = tmp_path / "claim" / "huggingface" / "hub" / "models--acme--generator"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0123abcd")
    shutil.copytree(demo_models()[GENERATOR_NAME], cached / "snapshots" / "0123abcd")
    return tmp_path / "claim"


def test_pods_wait_for_the_models(helm4: Helm4, claim: Path, tmp_path: Path) -> None:
    """The Job's download is left out: the hub cannot be reached from here."""
    manifests = helm4.template(
        {
            "models": [{"name": "chat", "model": HUB_ID}],
            "storage": {
                "existingClaim": "models",
                "accessModes": ["ReadWriteMany"],
                "mountPath": str(claim),
                "prefetch": {"enabled": True},
            },
        }
    )
    config = tmp_path / "penstock.yaml"
    config.write_text(of_kind(manifests, "ConfigMap", "-prefetch")["data"]["penstock.yaml"])
    (job,) = of_kind(manifests, "Job")["spec"]["template"]["spec"]["containers"]
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    (wait,) = pod["initContainers"]

    # Before the Job has run, the pod waits.
    waiting = subprocess.Popen(wait["command"])
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(3)
        code, text = run(job, {CONFIG: str(config)}, HF_HUB_OFFLINE="1", HOME=str(tmp_path))
        assert code == 0, text
        assert text.startswith(f"{HUB_ID}: LlamaForCausalLM")
        assert waiting.wait(10) == 0
    finally:
        waiting.kill()

    # The daemon finds the model without the hub.
    (container,) = pod["containers"]
    config.write_text(of_kind(manifests, "ConfigMap", "-config")["data"]["penstock.yaml"])
    check = container | {"command": ["penstock", "config", "--check"], "args": ["--config", CONFIG]}
    code, text = run(check, {CONFIG: str(config)}, HOME=str(tmp_path))
    assert (code, text.partition(":")[0]) == (0, "chat"), text


def test_the_job_fails_without_the_models(helm4: Helm4, tmp_path: Path) -> None:
    """Then no pod starts: the file for which they wait is not there."""
    claim = tmp_path / "empty"
    claim.mkdir()
    manifests = helm4.template(
        {
            "models": [{"name": "chat", "model": HUB_ID}],
            "strategy": {"type": "Recreate"},
            "storage": {"create": True, "mountPath": str(claim), "prefetch": {"enabled": True}},
        }
    )
    config = tmp_path / "penstock.yaml"
    config.write_text(of_kind(manifests, "ConfigMap", "-prefetch")["data"]["penstock.yaml"])
    (job,) = of_kind(manifests, "Job")["spec"]["template"]["spec"]["containers"]
    code, text = run(job, {CONFIG: str(config)}, HF_HUB_OFFLINE="1", HOME=str(tmp_path))
    assert code == 1
    assert HUB_ID in text
    assert not list(claim.glob(".penstock*"))
