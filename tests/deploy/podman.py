"""podman, with images, containers and settings of the tests' own."""

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

# runc, because crun refuses machines whose cgroups it cannot manage; ulimits, because a machine may
# not allow podman's own.
CONTAINERS = """
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
STORAGE = """
[storage]
driver = "{driver}"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


class Podman:
    """Keeps all that it has below `folder`."""

    def __init__(self, folder: Path) -> None:
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        (folder / "containers.conf").write_text(CONTAINERS.format(files=files, folder=folder))
        self.environment = os.environ | {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        # vfs copies an image for each container, but works everywhere.
        for driver in ("overlay", "vfs"):
            (folder / "storage.conf").write_text(STORAGE.format(driver=driver, folder=folder))
            if self.ask("info").returncode == 0:
                break

    def ask(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command of podman, and return its output and status."""
        return subprocess.run(
            ["podman", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def run(self, *arguments: str, timeout_s: float = 60) -> str:
        """The output of a command that must succeed."""
        done = self.ask(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def inspect(self, container: str) -> dict[str, Any]:
        """What podman knows of a container."""
        (found,) = json.loads(self.run("inspect", container))
        return found

    def remove_everything(self) -> None:
        """Pods, volumes and images, whose files belong to other users."""
        for what in ("pod rm", "volume rm", "rmi"):
            self.run(*what.split(), "--all", "--force", timeout_s=300)
