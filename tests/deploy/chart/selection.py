"""What selects what among rendered objects, as Kubernetes does it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.deploy.helm import Manifest

Labels = Mapping[str, str]
DAEMONS = ("Deployment", "LeaderWorkerSet", "RayJob")
"""The kinds whose pods are daemons, or gangs of them."""


@dataclass(frozen=True)
class Pod:
    """The pods of one workload that have one template."""

    workload: str
    kind: str
    labels: Labels
    spec: Mapping[str, Any]

    @property
    def ports(self) -> set[str]:
        """The names of its containers' ports."""
        containers = self.spec["containers"]
        return {port["name"] for each in containers for port in each.get("ports", ())}


def pods(manifests: Iterable[Manifest]) -> Iterator[Pod]:
    """One for each template of each workload."""
    for each in manifests:
        name, kind = each["metadata"]["name"], each["kind"]
        for template in templates(each):
            yield Pod(name, kind, template["metadata"].get("labels", {}), template["spec"])


def templates(manifest: Manifest) -> list[Manifest]:
    """Of a workload's pods, first that of those which are asked; of a pod itself."""
    spec = manifest.get("spec", {})
    match manifest["kind"]:
        case "Pod":
            return [manifest]
        case "Deployment" | "Job":
            return [spec["template"]]
        case "LeaderWorkerSet":
            gang = spec["leaderWorkerTemplate"]
            return [gang["leaderTemplate"], gang["workerTemplate"]]
        case "RayJob":
            cluster = spec["rayClusterSpec"]
            groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
            return [group["template"] for group in groups]
        case _:
            return []


def alone(manifest: Manifest) -> list[Manifest]:
    """The pods of a custom resource, as ones that Kubernetes itself defines."""
    kind, name = manifest["kind"].lower(), manifest["metadata"]["name"]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": template["metadata"]
            | {"name": f"{name}-{kind}-{number}", "namespace": manifest["metadata"]["namespace"]},
            "spec": template["spec"],
        }
        for number, template in enumerate(templates(manifest))
    ]


def matches(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Whether a label selector (`matchLabels`, `matchExpressions`) takes these labels."""
    wanted = selector.get("matchLabels", {}).items()
    expressions = selector.get("matchExpressions", ())
    return wanted <= labels.items() and all(_holds(each, labels) for each in expressions)


def _holds(expression: Mapping[str, Any], labels: Labels) -> bool:
    value = labels.get(expression["key"])
    values = expression.get("values", ())
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]
