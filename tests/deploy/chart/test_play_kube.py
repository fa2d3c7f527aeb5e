"""The rendered pod, run by podman: it becomes ready by its probes, drains, and ends when it must.

podman runs no probes and no preStop, so the tests take a kubelet's part, by what the manifest says.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.chart.played_pod import PlayedPod
from tests.deploy.chart.release_test import helm_test
from tests.deploy.chart.selection import templates
from tests.deploy.helm import Helm3, Manifest
from tests.deploy.podman import Podman
from tests.deploy.stream import Stream
from tests.e2e.daemon import free_port

DRAIN_S = 40


@pytest.fixture
def manifests(helm3: Helm3, cpu_image: str) -> list[Manifest]:
    """The defaults, at a port of loopback, with shorter times."""
    repository, _, tag = cpu_image.rpartition(":")
    port = free_port()
    return helm3.template(
        {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "server": {"host": "127.0.0.1", "port": port, "drainSeconds": DRAIN_S},
            "service": {"port": port},
            "preStopSeconds": 1,
            "probes": {
                "startup": {"periodSeconds": 1},
                "live": {"periodSeconds": 1},
                "ready": {"periodSeconds": 1},
            },
        }
    )


@pytest.fixture
def pod(podman: Podman, manifests: list[Manifest], tmp_path: Path) -> Iterator[PlayedPod]:
    """Started: its startup probe has passed."""
    (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
    (template,) = templates(deployment)
    with PlayedPod(podman, template, manifests, tmp_path) as played:
        assert played.probe("startupProbe").passes_in_time()
        yield played


def test_a_restricted_pod_serves(pod: PlayedPod, podman: Podman) -> None:
    assert pod.probe("readinessProbe").passes()
    assert pod.probe("livenessProbe").passes()
    status = pod.status()
    assert status["Uid"].split() == ["10001"] * 4
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert "Read-only" in pod.ask("touch", "/opt/file").stderr
    assert pod.ask("touch", "/home/penstock/file", "/tmp/file").returncode == 0


def test_files_are_kept_on_the_claim(pod: PlayedPod) -> None:
    upload = {"file": ("lines.jsonl", b"{}\n")}
    answer = httpx.post(f"{pod.url}/v1/files", data={"purpose": "batch"}, files=upload)
    assert answer.status_code == 200, answer.text
    assert pod.ask("ls", "/var/lib/penstock/state/penstock.db").returncode == 0


def test_helm_test_passes(
    pod: PlayedPod, podman: Podman, manifests: list[Manifest], tmp_path: Path
) -> None:
    code, log = helm_test(podman, manifests, tmp_path)
    assert code == 0, log
    assert "/v1/completions of penstock-demo: fine" in log
    assert "/v1/embeddings of all-MiniLM-L6-v2: fine" in log


def test_a_killed_engine_is_started_again_in_the_container(pod: PlayedPod) -> None:
    """Until then it is not ready, but lives; what another engine generates goes on."""
    stream = Stream(pod.url, tokens=400)
    live, ready = pod.probe("livenessProbe"), pod.probe("readinessProbe")
    engines = pod.processes("engine_core")
    assert len(engines) == 2
    began = time.monotonic()
    os.kill(max(engines), signal.SIGKILL)  # the embedder's: it was started after the generator's
    while ready.status() == 200:
        assert time.monotonic() - began < 10
        time.sleep(0.02)
    while ready.status() != 200:
        assert live.status() == 200
        assert time.monotonic() - began < 60
        time.sleep(0.1)
    stream.join()
    assert (stream.whole, stream.tokens) == (True, 400)


def test_a_stream_completes_after_sigterm(pod: PlayedPod) -> None:
    grace_s = pod.spec["terminationGracePeriodSeconds"]
    ready = pod.probe("readinessProbe")
    began = time.monotonic()
    assert pod.ask(*pod.container["lifecycle"]["preStop"]["exec"]["command"]).returncode == 0
    assert ready.passes()  # it serves until its end is known everywhere
    stream = Stream(pod.url, tokens=600)
    pod.signal("TERM")
    while ready.status() == 200:
        assert time.monotonic() - began < 10
        time.sleep(0.02)
    assert ready.status() == 503
    assert not stream.whole
    assert pod.exit_code(within_s=grace_s) == 0
    assert time.monotonic() - began < grace_s
    stream.join()
    assert (stream.whole, stream.tokens) == (True, 600)
