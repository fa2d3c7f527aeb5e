"""Writes constraints.txt: the release of each package that penstock and its tests use, on every
Python that they run on.

pip itself resolves, so that its configuration counts, without downloading what has metadata apart.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

_PYTHONS = {"3.11": 'python_version < "3.12"', "3.12": 'python_version >= "3.12"'}
_HEADER = """\
# Written by `make constraints`: the releases with which penstock is run and tested, on Python 3.11
# and 3.12. What torch's builds differ in is left out: their local versions, CUDA's libraries.
"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("held", type=Path, help="constraints that are kept as they are")
    parser.add_argument("file", type=Path, help="the file to write")
    arguments = parser.parse_args()
    found = {python: _resolve(python, arguments.held) for python in _PYTHONS}
    arguments.file.write_text(_HEADER + "".join(f"{line}\n" for line in lines(found)))


def _resolve(python: str, held: Path) -> dict[str, str]:
    """The release of each package that pip would install for `python`."""
    path = shutil.which(f"python{python}")
    if path is None:
        sys.exit(f"Python {python} is needed, as python{python}")
    command = [
        *(sys.executable, "-m", "pip", "--python", path, "--quiet", "install"),
        *("--dry-run", "--ignore-installed", "--report", "-"),
        *("--constraint", str(held), "--editable", ".[dev]"),
    ]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    metadata = [item["metadata"] for item in report["install"]]
    releases = {canonicalize_name(each["name"]): each["version"] for each in metadata}
    return {name: Version(release).public for name, release in releases.items() if _is_kept(name)}


def _is_kept(name: str) -> bool:
    return name != "penstock" and not name.startswith(("cuda-", "nvidia-"))


def lines(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """A line for each package of `found` (Python, package, release); a line for each Python where
    the releases differ."""
    for name in sorted({name for releases in found.values() for name in releases}):
        pins = {python: f"{name}=={own[name]}" for python, own in found.items() if name in own}
        if len(set(pins.values())) == 1:
            yield next(iter(pins.values()))
        else:
            yield from (f"{pin} ; {_PYTHONS[python]}" for python, pin in pins.items())


if __name__ == "__main__":
    main()
