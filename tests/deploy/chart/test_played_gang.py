"""The rendered pods of a LeaderWorkerSet, run by podman in two network namespaces.

They serve as one, and again when a lost pod has both made anew. The tests take the part of LWS's
controller and of a kubelet, by what the manifest says.
"""

import os
import signal
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.demo import GENERATOR_NAME
from tests.deploy.chart.played_pod import PlayedPod, add_host
from tests.deploy.chart.release_test import helm_test
from tests.deploy.chart.selection import templates
from tests.deploy.helm import Helm3, Manifest
from tests.deploy.podman import Podman
from tests.e2e.hosts.network import Host, missing, network
from tests.patience import PATIENCE, wait_until

GANG = "demo-penstock-gang"
SECRET = b"the secret of this gang alone"
REQUEST = {
    "model": "chat",
    "prompt": "The Python interpreter",
    "max_tokens": 20,
    "temperature": 0,
    "ignore_eos": True,
}
LOSS_S = 5.0
"""Within which a gang's other pods end, or wait for it."""


@dataclass
class Gang:
    """Both pods, in a namespace each, while they run."""

    hosts: list[Host]
    master: PlayedPod
    node: PlayedPod

    def wait_ready(self) -> None:
        with self.hosts[0].inside():
            assert self.master.probe("startupProbe").passes_in_time()
            assert self.master.probe("readinessProbe").passes()

    def text(self) -> str:
        """What clients get, asked from the node's namespace."""
        with self.hosts[1].inside():
            answer = httpx.post(f"{self.master.url}/v1/completions", json=REQUEST, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]


@pytest.fixture(scope="module")
def values(podman: Podman, cpu_image: str) -> dict[str, Any]:
    """The demo generator, in a stage on each of two pods."""
    path = f"from server.demo import demo_models; print(demo_models()[{GENERATOR_NAME!r}])"
    run = ("run", "--rm", "--network=none", "--entrypoint", "python", cpu_image, "-c", path)
    repository, _, tag = cpu_image.rpartition(":")
    options = {"pipeline_stages": 2, "threads": 1}
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "multinode": {"mode": "lws"},
        "models": [{"name": "chat", "model": podman.run(*run).strip(), "options": options}],
        "probes": {"startup": {"periodSeconds": 1, "marginSeconds": 0}},
        "server": {"startupSeconds": PATIENCE},
        "preStopSeconds": 1,
    }


@pytest.fixture
def hosts() -> Generator[list[Host]]:
    why = missing()
    if why is not None:
        pytest.skip(why)
    with network(2) as net:
        yield net.hosts


def pod_of(
    podman: Podman, manifests: list[Manifest], folder: Path, hosts: list[Host], rank: int
) -> PlayedPod:
    """With what LWS's webhook and a kubelet add.

    That is the variables, the headless Service's name, and the Secret as a file of root's which the
    pod's group may read."""
    (gang,) = (each for each in manifests if each["kind"] == "LeaderWorkerSet")
    template = templates(gang)[rank]
    (container,) = template["spec"]["containers"]
    own, leader = hosts[rank].address, hosts[0].address
    added = {
        "LWS_LEADER_ADDRESS": f"{GANG}-0.{GANG}.models",
        "LWS_GROUP_SIZE": str(gang["spec"]["leaderWorkerTemplate"]["size"]),
        "LWS_WORKER_INDEX": str(rank),
        "POD_IP": own,
    }
    kept = [each for each in container["env"] if each["name"] not in added]
    container["env"] = [{"name": key, "value": value} for key, value in added.items()] + kept
    container["args"] = [expanded(word, added) for word in container["args"]]
    if rank:
        add_host(template["spec"], folder, added["LWS_LEADER_ADDRESS"], leader)
    (volume,) = (each for each in template["spec"]["volumes"] if "secret" in each)
    mode = volume.pop("secret")["defaultMode"]
    volume["hostPath"] = {"path": str(secret_folder(folder, template, mode)), "type": "Directory"}
    return PlayedPod(
        podman,
        template,
        [] if rank else manifests,
        folder,
        name=f"{GANG}-0-{rank}" if rank else f"{GANG}-0",
        address=own,
    )


def expanded(word: str, variables: dict[str, str]) -> str:
    for key, value in variables.items():
        word = word.replace(f"$({key})", value)
    return word


def secret_folder(folder: Path, template: Manifest, mode: int) -> Path:
    """What the kubelet makes of the Secret, but for the user's own group: podman has no fsGroup."""
    place = folder / "cluster"
    place.mkdir(exist_ok=True)
    file = place / "secret"
    file.write_bytes(SECRET)
    file.chmod(mode)
    os.chown(file, 0, template["spec"]["securityContext"]["runAsGroup"])
    place.chmod(0o755)
    return place


@contextmanager
def gang(
    podman: Podman, helm: Helm3, values: dict[str, Any], folder: Path, hosts: list[Host]
) -> Generator[Gang]:
    """One whose pods are made together, and removed together."""
    with ExitStack() as stack:
        manifests = helm.template(values)
        pods = [pod_of(podman, manifests, folder, hosts, rank) for rank in (0, 1)]
        # The node comes first, and waits.
        for host, pod in reversed([*zip(hosts, pods, strict=True)]):
            with host.inside():
                stack.enter_context(pod)
        yield Gang(hosts, *pods)


def test_two_pods_serve_as_one_and_again_after_a_loss(
    podman: Podman, helm3: Helm3, values: dict[str, Any], hosts: list[Host], tmp_path: Path
) -> None:
    with gang(podman, helm3, values, tmp_path, hosts) as first:
        first.wait_ready()
        text = first.text()
        for pod in (first.master, first.node):
            assert pod.status()["Uid"].split() == ["10001"] * 4
            assert "secret" not in pod.execute("env").casefold()
        with hosts[1].inside():
            code, log = helm_test(
                podman, helm3.template(values), tmp_path, address=hosts[0].address
            )
        assert code == 0, log
        first.master.signal("KILL")
        assert first.master.exit_code(within_s=LOSS_S) == 128 + signal.SIGKILL
        # Its container would be started again, at which the controller has both pods made anew.
        wait_until(lambda: "joining again" in first.node.log(), LOSS_S)
    with gang(podman, helm3, values, tmp_path, hosts) as second:
        second.wait_ready()
        assert second.text() == text


def test_a_lost_node_ends_the_master(
    podman: Podman, helm3: Helm3, values: dict[str, Any], hosts: list[Host], tmp_path: Path
) -> None:
    """So that its container is started again, and the gang made anew."""
    with gang(podman, helm3, values, tmp_path, hosts) as it:
        it.wait_ready()
        it.node.signal("KILL")
        assert it.master.exit_code(within_s=2 * LOSS_S) == 1
        assert "the node 1" in it.master.log()
