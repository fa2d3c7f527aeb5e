"""sbom.py FILE: writes as CycloneDX 1.6 what this image has: Debian's packages, Python and its own.

https://cyclonedx.org/docs/1.6/json/; package URLs by https://github.com/package-url/purl-spec.
"""

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote


class Component(NamedTuple):
    """A package of the image."""

    name: str
    version: str
    purl: str


def main() -> None:
    """Write the file."""
    python = {component.name: component for component in _python_packages()}
    own = python.pop("penstock")
    components = {*python.values(), *_debian_packages(), _interpreter()}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _entry("application", own)},
        "components": [_entry("library", component) for component in sorted(components)],
    }
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")


def _entry(kind: str, component: Component) -> dict[str, str]:
    name, version, purl = component
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _interpreter() -> Component:
    """Python itself: where it was not installed from a package, nothing else lists it."""
    version = platform.python_version()
    return Component("cpython", version, f"pkg:generic/cpython@{version}")


def _python_packages() -> Iterator[Component]:
    for package in distributions():
        name = re.sub(r"[-_.]+", "-", package.name).lower()
        yield Component(name, package.version, f"pkg:pypi/{name}@{quote(package.version)}")


def _debian_packages() -> Iterator[Component]:
    shown = "${binary:Package}\t${Version}\t${Architecture}\n"
    command = ["dpkg-query", "--show", "--showformat", shown]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        qualified, version, architecture = line.split("\t")
        name = qualified.partition(":")[0]
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
        yield Component(name, version, purl)


if __name__ == "__main__":
    main()
