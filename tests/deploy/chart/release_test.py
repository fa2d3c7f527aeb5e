"""`helm test` of a rendered release, whose pod podman runs."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.deploy.chart.played_pod import add_host
from tests.deploy.helm import Manifest
from tests.deploy.podman import Podman


def helm_test(
    podman: Podman,
    manifests: Sequence[Manifest],
    folder: Path,
    *,
    address: str = "127.0.0.1",
) -> tuple[int, str]:
    """The exit code and the log of its pod, in the network namespace in which this is called.

    The Service's name stands for `address`.
    """
    (test,) = (each for each in manifests if each["kind"] == "Pod")
    (container,) = test["spec"]["containers"]
    (service,) = (each["metadata"]["name"] for each in manifests if each["kind"] == "Service")
    add_host(test["spec"], folder, service, address)
    file, name = folder / "test.yaml", test["metadata"]["name"]
    file.write_text(yaml.safe_dump(test))
    podman.run("play", "kube", "--network", "host", str(file))
    try:
        code = podman.run("wait", f"{name}-{container['name']}").strip()
        return int(code), podman.run("logs", f"{name}-{container['name']}")
    finally:
        podman.run("pod", "rm", "--force", name)
