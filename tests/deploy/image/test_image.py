"""The image of the target `cpu`: who runs in it, what it serves, how it ends, what it holds."""

import json
import os
import signal
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import httpx
import pytest

from tests.deploy.image.container import RESTRICTED, Container
from tests.deploy.podman import Podman
from tests.deploy.stream import Stream
from tests.patience import wait_until

MOST_BYTES = 2 << 30


@pytest.fixture(scope="module")
def settings(podman: Podman, cpu_image: str) -> dict[str, Any]:
    """What the image says of itself."""
    found = podman.inspect(cpu_image)
    print(f"{found['Size'] / 1e9:.2f} GB")
    return found


@pytest.fixture(scope="module")
def shared(podman: Podman, cpu_image: str) -> Iterator[Container]:
    """A container that no test ends."""
    with Container(podman, cpu_image, *RESTRICTED) as running:
        yield running


@pytest.fixture
def container(podman: Podman, cpu_image: str) -> Iterator[Container]:
    with Container(podman, cpu_image, *RESTRICTED) as running:
        yield running


def test_it_says_how_it_runs(settings: dict[str, Any]) -> None:
    config = settings["Config"]
    assert config["User"] == "10001:0"
    assert config["Entrypoint"] == ["tini", "--", "penstock"]
    assert config["Cmd"] == ["serve", "--host", "0.0.0.0"]
    assert list(config["ExposedPorts"]) == ["8000/tcp"]
    prefix = "org.opencontainers.image."
    labels = {key.removeprefix(prefix): value for key, value in config["Labels"].items()}
    assert labels["title"] == "penstock"
    assert labels["version"] == version("penstock")
    assert {"description", "revision"} <= set(labels)
    assert settings["Size"] < MOST_BYTES


def test_a_restricted_container_serves(shared: Container) -> None:
    assert shared.execute("id", "-u").strip() == "10001"
    assert shared.execute("id", "-g").strip() == "0"
    status = shared.status()
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert shared.execute("sh", "-c", "touch /opt/file || echo refused") == "refused\n"
    completion = {"model": "penstock-demo", "prompt": "The Python", "max_tokens": 4}
    answer = httpx.post(f"{shared.url}/v1/completions", json=completion)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"]
    texts = {"model": "all-MiniLM-L6-v2", "input": ["a", "b"]}
    answer = httpx.post(f"{shared.url}/v1/embeddings", json=texts)
    assert [len(row["embedding"]) for row in answer.json()["data"]] == [384, 384]


def test_it_turns_healthy(podman: Podman, shared: Container) -> None:
    podman.run("healthcheck", "run", shared.name)
    assert podman.inspect(shared.name)["State"]["Health"]["Status"] == "healthy"


def test_it_runs_as_any_user_of_group_0(podman: Podman, cpu_image: str) -> None:
    options = (*RESTRICTED, "--user", "1000680000:0")
    with Container(podman, cpu_image, *options) as running:
        assert running.execute("id", "-u").strip() == "1000680000"
        running.execute("touch", "/home/penstock/file")


def test_its_home_may_be_a_part_of_the_image(podman: Podman, cpu_image: str) -> None:
    """Without a read-only root and without tmpfs."""
    with Container(podman, cpu_image, "--user", "1000680000:0") as running:
        running.execute("mkdir", "-p", "/home/penstock/.cache/penstock")


def test_stop_drains(podman: Podman, container: Container) -> None:
    stream = Stream(container.url, tokens=400)
    began = time.monotonic()
    assert not stream.whole
    podman.run("stop", "--time", "45", container.name)
    assert time.monotonic() - began < 40
    assert container.exit_code(within_s=10) == 0
    stream.join()
    assert (stream.whole, stream.tokens) == (True, 400)


def test_an_engine_that_keeps_dying_ends_it(container: Container) -> None:
    """One kill more than --max-restarts allows by default."""
    last = 0
    for _ in range(4):
        wait_until(lambda last=last: max(container.processes("engine_core"), default=0) > last)
        last = max(container.processes("engine_core"))
        os.kill(last, signal.SIGKILL)
    assert container.exit_code(within_s=40) == 1


def test_the_sbom_is_true(shared: Container) -> None:
    """By what pip and dpkg say."""
    document = json.loads(shared.execute("cat", "/opt/penstock/sbom.cdx.json"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "penstock"
    named: dict[str, set[tuple[str, str]]] = {"pypi": set(), "deb": set(), "generic": set()}
    for component in document["components"]:
        kind = component["purl"].removeprefix("pkg:").partition("/")[0]
        named[kind].add((component["name"], component["version"]))
    listed = json.loads(shared.execute("python", "-m", "pip", "list", "--format=json"))
    installed = {(row["name"].lower().replace("_", "-"), row["version"]) for row in listed}
    own = {row for row in installed if row[0] == "penstock"}
    assert {(name.replace(".", "-"), number) for name, number in installed - own} == named["pypi"]
    packages = shared.execute("dpkg-query", "--show", "--showformat", "${Package} ${Version}\n")
    assert {tuple(line.split()) for line in packages.splitlines()} == named["deb"]
    _, number = shared.execute("python", "--version").split()
    assert named["generic"] == {("cpython", number)}


def test_nothing_is_left_of_the_build(shared: Container) -> None:
    folders = "/source", "/mnt/*", "/root/.cache", "/home/penstock/.cache", "/etc/pip.conf"
    found = shared.execute("sh", "-c", f"ls -d {' '.join(folders)} 2> /dev/null || true")
    assert found == ""
    listed = shared.execute("sh", "-c", "ls /var/lib/apt/lists /var/cache/apt")
    assert "Packages" not in listed
    assert "pkgcache" not in listed
    tools = shared.execute("sh", "-c", "command -v gcc cc make || true")
    assert tools == ""
