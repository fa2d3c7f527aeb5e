"""The daemon in a container with the limits of its unit: system calls, sockets, capabilities."""

import json
import socket
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.deploy.image.container import RESTRICTED, Container
from tests.deploy.podman import Podman
from tests.deploy.systemd.seccomp import allowed_calls, seccomp_profile
from tests.deploy.systemd.unit_file import read_unit


def seccomp(name: str, folder: Path) -> str:
    """The option of podman for the system calls of a unit."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(seccomp_profile(read_unit(name))))
    return f"--security-opt=seccomp={file}"


@pytest.fixture(scope="module")
def limited(
    podman: Podman,
    cpu_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[Container]:
    """By penstock.service; penstock-cuda.service is different only in devices."""
    unit = read_unit("penstock")
    assert unit["CapabilityBoundingSet"] == [""]
    assert unit["NoNewPrivileges"] == ["yes"]
    option = seccomp("penstock", tmp_path_factory.mktemp("seccomp"))
    with Container(podman, cpu_image, *RESTRICTED, option) as container:
        yield container


def test_it_answers(limited: Container) -> None:
    body = {"model": "penstock-demo", "prompt": "The Python interpreter", "max_tokens": 20}
    answer = httpx.post(f"{limited.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
    body = {"model": "all-MiniLM-L6-v2", "input": ["a text"]}
    answer = httpx.post(f"{limited.url}/v1/embeddings", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


def test_the_limits_hold(limited: Container) -> None:
    """Without capabilities, and with a filter that refuses what the unit does not allow."""
    status = limited.status()
    assert int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    refused = "import socket\ntry: socket.socket({})\nexcept PermissionError: print('refused')"
    asked = limited.execute("python", "-c", refused.format(int(socket.AF_PACKET)))
    assert asked.strip() == "refused"


def test_sets_of_calls_are_expanded() -> None:
    calls = allowed_calls(read_unit("penstock")["SystemCallFilter"])
    assert {"execve", "mmap", "futex", "epoll_wait", "pidfd_open"} <= calls
    assert not {"mount", "ptrace", "bpf", "setuid", "chown"} & calls
    assert not [call for call in calls if call.startswith("@")]
