"""checkov finds nothing in any example release, but for what is listed here with its reason."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.deploy import custom_resources
from tests.deploy.chart.ci_values import NAMES, ci_values
from tests.deploy.chart.selection import alone
from tests.deploy.helm import Helm3, Values
from tests.project.source_tree import REPOSITORY

# Of every object.
SKIPPED = {
    # A digest is the operator's to give (image.digest): none was seen of an image that they build.
    "CKV_K8S_43": "the image should be named by its digest",
    # The tag is a version; `latest` with another policy than Always is refused by the chart.
    "CKV_K8S_15": "the pull policy should be Always",
    # The hub's token is in the environment, where its library looks for it, and in the pod of `helm
    # test` the API keys, for seconds. The daemon has its keys as files.
    "CKV_K8S_35": "secrets should be files",
}
# Of one pod: the check, and how the pod's name begins and ends.
ACCEPTED = {
    # The pod of `helm test` runs once and serves nothing.
    ("CKV_K8S_8", "", "-penstock-test"): "there should be a liveness probe",
    ("CKV_K8S_9", "", "-penstock-test"): "there should be a readiness probe",
    # A gang's nodes speak no HTTP; the master knows when one is lost.
    ("CKV_K8S_8", "", "-leaderworkerset-1"): "there should be a liveness probe",
    ("CKV_K8S_9", "", "-leaderworkerset-1"): "there should be a readiness probe",
    # Its values switch them off.
    ("CKV2_K8S_6", "everything-off-", ""): "there should be a NetworkPolicy",
}


def findings(releases: Mapping[str, Values], helm: Helm3, folder: Path) -> set[tuple[str, str]]:
    """The number and the pod or other object of each failed check that is not accepted."""
    for name, values in releases.items():
        manifests = helm.template(values, release=name)
        custom = [each for each in manifests if custom_resources.is_custom(each)]
        manifests += [pod for each in custom for pod in alone(each)]
        (folder / f"{name}.yaml").write_text("\n---\n".join(map(json.dumps, manifests)))
    checkov = REPOSITORY / ".venv-deploy" / "bin" / "checkov"
    flags = ["--skip-download", "--framework", "kubernetes", "--output", "json", "--compact"]
    done = subprocess.run(
        [checkov, *flags, "--skip-check", ",".join(SKIPPED), "--directory", folder],
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["passed"] > 50 * len(releases)
    failed = report["results"]["failed_checks"]
    found = {(each["check_id"], each["resource"].split(".")[2]) for each in failed}
    return {(check, name) for check, name in found if not is_accepted(check, name)}


def is_accepted(check: str, name: str) -> bool:
    return any(
        check == accepted and name.startswith(start) and name.endswith(end)
        for accepted, start, end in ACCEPTED
    )


def test_nothing_is_found(helm3: Helm3, tmp_path: Path) -> None:
    assert findings({name: ci_values(name) for name in NAMES}, helm3, tmp_path) == set()


def test_what_is_found_without_the_defaults(helm3: Helm3, tmp_path: Path) -> None:
    loose: Values = {"securityContext": {"readOnlyRootFilesystem": False}}
    found = {check for check, _ in findings({"loose": loose}, helm3, tmp_path)}
    assert found == {"CKV_K8S_22"}
