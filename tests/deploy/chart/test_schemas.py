"""Every rendered object is one that Kubernetes, or the operator that defines its kind, accepts."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.deploy import custom_resources
from tests.deploy.chart.ci_values import NAMES, ci_values
from tests.deploy.chart.selection import alone
from tests.deploy.helm import Helm3, Manifest
from tests.project.source_tree import REPOSITORY

# The oldest that a cloud still serves, one between, and the newest that kubernetes-validate knows.
VERSIONS = ("1.29", "1.33", "1.37")


@pytest.fixture(scope="module")
def releases(helm3: Helm3) -> dict[str, list[Manifest]]:
    """What each example release renders to."""
    return {name: helm3.template(ci_values(name)) for name in NAMES}


def refused(manifests: list[Manifest], version: str, folder: Path) -> str:
    """What strict validation against a version of Kubernetes says of them; empty if nothing."""
    file = folder / "manifests.yaml"  # JSON is YAML
    file.write_text("\n---\n".join(map(json.dumps, manifests)))
    validate = REPOSITORY / ".venv-deploy" / "bin" / "kubernetes-validate"
    done = subprocess.run(
        [validate, "--strict", "--quiet", "--kubernetes-version", version, file],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert bool(done.returncode) == ("ERROR" in done.stdout), done.stdout
    # A kind that it does not know is a warning.
    return done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_its_own_kinds(
    version: str, releases: dict[str, list[Manifest]], tmp_path: Path
) -> None:
    for name, rendered in releases.items():
        custom = [each for each in rendered if custom_resources.is_custom(each)]
        own = [each for each in rendered if each not in custom]
        own += [pod for each in custom for pod in alone(each)]
        assert (name, refused(own, version, tmp_path)) == (name, "")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_bad_deployment_is_refused(version: str, helm3: Helm3, tmp_path: Path) -> None:
    (deployment,) = (each for each in helm3.template({}) if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    assert "livenesProbe" in refused([deployment], version, tmp_path)
    deployment["kind"] = "Deploymint"
    assert "Deploymint" in refused([deployment], version, tmp_path)


def test_operators_accept_their_kinds(releases: dict[str, list[Manifest]]) -> None:
    found = {
        (name, each["kind"]): each
        for name, rendered in releases.items()
        for each in rendered
        if custom_resources.is_custom(each)
    }
    errors = custom_resources.errors([*found.values()])
    assert {of: each for of, each in zip(found, errors, strict=True) if each} == {}
    kinds = {kind for _, kind in found}
    assert kinds == {
        *("HTTPRoute", "InferencePool", "LeaderWorkerSet", "PodMonitor", "PrometheusRule"),
        *("RayJob", "ScaledObject", "ServiceMonitor"),
    }
