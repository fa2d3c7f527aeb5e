"""A rendered pod, run by podman in the part of a kubelet."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from tests.deploy.helm import Manifest
from tests.deploy.podman import Podman
from tests.deploy.running_container import RunningContainer


def add_host(spec: dict[str, Any], folder: Path, name: str, address: str) -> None:
    """Tell a pod a name by /etc/hosts, in place of the cluster's DNS."""
    (container,) = spec["containers"]
    file = folder / f"hosts-{name}"
    file.write_text(f"{address} {name}\n")
    volume = {"name": "hosts", "hostPath": {"path": str(file), "type": "File"}}
    mount = {"name": "hosts", "mountPath": "/etc/hosts", "readOnly": True}
    spec["volumes"] = [*spec.get("volumes", ()), volume]
    container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]


@dataclass(frozen=True)
class Probe:
    """An HTTP probe of a container, as its manifest has it."""

    url: str
    period_s: float
    timeout_s: float
    failures: int

    def status(self) -> int | None:
        """Of one answer; None without an answer in time."""
        try:
            return httpx.get(self.url, timeout=self.timeout_s).status_code
        except httpx.TransportError:
            return None

    def passes(self) -> bool:
        """Whether one answer is what a kubelet takes as success."""
        status = self.status()
        return status is not None and 200 <= status < 400

    def passes_in_time(self) -> bool:
        """Whether it passes before it failed as often, in a row, as the manifest allows."""
        for attempt in range(self.failures):
            began = time.monotonic()
            if self.passes():
                return True
            if attempt + 1 < self.failures:
                time.sleep(max(0.0, began + self.period_s - time.monotonic()))
        return False


class PlayedPod(RunningContainer):
    """A pod of a template among `manifests`, asked at `address`.

    No port is mapped: it is in the network namespace in which it is started."""

    def __init__(
        self,
        podman: Podman,
        template: Manifest,
        manifests: Sequence[Manifest],
        folder: Path,
        *,
        name: str = "played",
        address: str = "127.0.0.1",
    ) -> None:
        self.spec: dict[str, Any] = template["spec"]
        (self.container,) = self.spec["containers"]
        self._ports = {port["name"]: port for port in self.container.pop("ports", ())}
        self.spec["restartPolicy"] = "Never"  # so that its end can be seen
        self._address, self._pod = address, f"{name}-pod-0"
        super().__init__(podman, f"{self._pod}-{self.container['name']}")
        self._file = folder / f"{name}.yaml"
        configuration = [each for each in manifests if each["kind"] == "ConfigMap"]
        claims = [each for each in manifests if each["kind"] == "PersistentVolumeClaim"]
        self._volumes = [each["metadata"]["name"] for each in claims]
        for each in claims:  # a kubelet gives a volume to the pod's fsGroup
            group = {"volume.podman.io/uid": str(self.spec["securityContext"]["fsGroup"])}
            each["metadata"]["annotations"] = group
        # Of a Pod, podman refuses annotations of more than 63 characters.
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"template": template},
        }
        self._file.write_text(yaml.safe_dump_all([*configuration, *claims, deployment]))

    def __enter__(self) -> Self:
        try:
            play = ("play", "kube", "--network", "host", str(self._file))
            self._podman.run(*play, timeout_s=120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        print(self.log())  # pytest shows it where a test fails
        self._podman.run("pod", "rm", "--force", "--time", "5", self._pod)
        if self._volumes:
            self._podman.run("volume", "rm", "--force", *self._volumes)
        self._podman.run("volume", "prune", "--force")

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self._ports['http']['containerPort']}"

    def probe(self, kind: str) -> Probe:
        """`startupProbe`, `livenessProbe` or `readinessProbe`."""
        found = self.container[kind]
        assert found["httpGet"]["port"] in self._ports
        return Probe(
            self.url + found["httpGet"]["path"],
            found["periodSeconds"],
            found["timeoutSeconds"],
            found["failureThreshold"],
        )
