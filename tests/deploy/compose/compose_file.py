"""deploy/compose.yaml, as Compose understands it with one of its profiles."""

import json
import os
import subprocess
from typing import Any

import yaml

from tests.project.source_tree import REPOSITORY

FOLDER = REPOSITORY / "deploy"
PROFILES = {"cpu": "penstock", "gpu": "penstock-cuda"}
"""Profile -> its service of the daemon."""


def composed(profile: str) -> dict[str, Any]:
    """All services of a profile, held against Compose's schema, with absolute paths.

    Debian's docker-compose is the last one in Python, which does not know `name` yet.
    """
    with (FOLDER / "compose.yaml").open() as file:
        text = yaml.safe_load(file)
    assert text.pop("name") == "penstock"
    done = subprocess.run(
        ["docker-compose", "--file", "-", "--profile", profile, "config"],
        cwd=FOLDER,
        env=os.environ | {"PWD": str(FOLDER)},  # its paths are relative to that
        input=json.dumps(text),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    active = {
        name: service
        for name, service in found["services"].items()
        if profile in service.get("profiles", [profile])
    }
    return found | {"services": active}


def daemon(profile: str) -> dict[str, Any]:
    """The daemon's service."""
    return composed(profile)["services"][PROFILES[profile]]


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Path in the container -> where it comes from, and `ro` or `rw`."""
    split = (volume.rsplit(":", 2) for volume in service["volumes"])
    return {target: (source, mode) for source, target, mode in split}
