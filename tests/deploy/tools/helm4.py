"""Helm 4, asked by lines of JSON on stdin, each answered by one on stdout.

A request is {"do": "template" | "lint" | "install", "chart": path, "values": {...},
"release": name, "namespace": name}; to install, also the "server" of a cluster's API. An answer
is {"result": ...} or {"error": sentence}. It runs in .venv-deploy.
"""

import json
import sys
from typing import Any

import helm_python


def template(request: dict[str, Any]) -> dict[str, str]:
    """The rendered text of each of the chart's templates, NOTES.txt too."""
    with helm_python.Chart.load(request["chart"]) as chart:
        return chart.render(
            request["values"], name=request["release"], namespace=request["namespace"]
        )


def install(request: dict[str, Any]) -> str:
    """All that a dry run would create, rendered with what the cluster has already."""
    with helm_python.Config(
        kube_apiserver=request["server"], namespace=request["namespace"], storage_driver="memory"
    ) as cluster:
        release = cluster.install(
            request["chart"],
            request["release"],
            request["values"],
            namespace=request["namespace"],
            dry_run="server",
        )
    return release["manifest"]


def lint(request: dict[str, Any]) -> list[str]:
    """What `helm lint --strict` finds wrong."""
    report = helm_python.lint(request["chart"], request["values"], strict=True)
    warning = 2
    warnings = [each["error"] for each in report["messages"] if each["severity"] >= warning]
    return report["errors"] + warnings


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The result of one request, or its error."""
    actions = {"template": template, "lint": lint, "install": install}
    try:
        return {"result": actions[request["do"]](request)}
    except helm_python.HelmError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
