"""What selects what among rendered objects, as Kubernetes does it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.deploy.helm import Manifest

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Pod:
    """The pods of one workload: a Deployment, a Job, or a pod of its own."""

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
    """One for each workload."""
    for each in manifests:
        name, kind = each["metadata"]["name"], each["kind"]
        if kind == "Pod":
            yield Pod(name, kind, each["metadata"].get("labels", {}), each["spec"])
        elif kind in ("Deployment", "Job"):
            template = each["spec"]["template"]
            yield Pod(name, kind, template["metadata"].get("labels", {}), template["spec"])


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
