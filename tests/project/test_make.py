"""`make` sets up what it needs, from the releases that constraints.txt names."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.project.requirements import needed_to_run

REPOSITORY = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12")

constraints = pytest.importorskip("tools.constraints", reason="runs beside an installed package")


def pins(python: str) -> dict[str, Version]:
    """What constraints.txt holds `python` to."""
    pinned = (REPOSITORY / "constraints.txt").read_text().splitlines()
    found: dict[str, Version] = {}
    for requirement in [Requirement(line) for line in pinned if not line.startswith("#")]:
        here = {"python_version": python, "python_full_version": f"{python}.0"}
        if requirement.marker is None or requirement.marker.evaluate(here):
            (specifier,) = requirement.specifier
            assert (specifier.operator, requirement.name in found) == ("==", False)
            found[requirement.name] = Version(specifier.version)
    return found


def bare_environment() -> dict[str, str]:
    """This one, less what configures pip and what the `make` that runs the tests was told."""
    told = re.compile(r"PIP_|MAKE|MFLAGS$|(ARGS|PYTHON|TORCH_INDEX)$")
    return {name: value for name, value in os.environ.items() if not told.match(name)}


def copy_files(folder: Path, *files: str) -> None:
    """Of the repository, to the same places below `folder`."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, folder / file)


# constraints.txt


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_pinned_within_its_range(python: str) -> None:
    pinned = pins(python)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["demo"], *extras["bench"], *extras["dev"]]
    for requirement in map(Requirement, wanted):
        if requirement.name != "penstock":
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
    assert "numpy<2.4" in wanted


@pytest.mark.parametrize("python", PYTHONS)
def test_pins_fit_every_build_of_torch(python: str) -> None:
    pinned = pins(python)
    assert [name for name, version in pinned.items() if version.local] == []
    assert [name for name in pinned if name.startswith(("nvidia-", "cuda-"))] == []


def test_all_that_running_needs_is_pinned() -> None:
    indirect = {name for name in needed_to_run() if not name.startswith(("nvidia-", "cuda-"))}
    assert indirect <= set(pins(f"3.{sys.version_info.minor}"))


# Where torch comes from


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the set-up reads, and two indexes: of builds for CPUs, and of others."""
    folder = tmp_path_factory.mktemp("checkout")
    copy_files(folder, "Makefile", "constraints.txt", "tools/set_up_step.py")
    release = pins("3.11")["torch"]
    write_wheel(folder / "cpu", "torch", f"{release}+cpu")
    write_wheel(folder / "usual", "torch", str(release), "nvidia-cublas", "other")
    write_wheel(folder / "usual", "torch", str(release.major + 1))
    write_wheel(folder / "usual", "nvidia-cublas", "13.1")
    write_wheel(folder / "usual", "other", "5.0+local")
    return folder


def write_wheel(index: Path, name: str, version: str, *needed: str) -> None:
    """A wheel of nothing but what it needs."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {each}" for each in needed]
    kind = ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any"]
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for file, content in (("METADATA", metadata), ("WHEEL", kind), ("RECORD", [])):
            wheel.writestr(f"{stem}.dist-info/{file}", "".join(f"{line}\n" for line in content))


@pytest.fixture(scope="module")
def indexes(checkout: Path) -> Iterator[str]:
    """Their address."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(checkout))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def environment(indexes: str) -> dict[str, str]:
    """In which pip knows no other index."""
    return bare_environment() | {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{indexes}/usual"}


@pytest.mark.parametrize(("given", "taken"), [(["TORCH_INDEX={}/cpu"], "cpu"), ([], "usual")])
def test_torch_comes_from_the_index_given_for_it(
    checkout: Path, indexes: str, environment: dict[str, str], given: list[str], taken: str
) -> None:
    report = checkout / "report.json"
    variables = [f"PYTHON={sys.executable}", *(each.format(indexes) for each in given)]
    subprocess.run(
        ["make", "--always-make", "--silent", *variables, ".venv/.torch-ready"],
        cwd=checkout,
        env=environment | {"PIP_DRY_RUN": "1", "PIP_REPORT": str(report)},
        check=True,
        timeout=100,
    )
    (torch,) = json.loads(report.read_text())["install"]
    release = pins("3.11")["torch"]
    wheel = f"{indexes}/{taken}/torch/torch-{release}"
    assert torch["download_info"]["url"].removeprefix(wheel).startswith(("-", "%2B"))


@pytest.mark.parametrize(("code", "shown"), [(0, []), (3, ["what is wrong"])])
def test_a_step_shows_one_line_and_what_failed(code: int, shown: list[str]) -> None:
    pip = ["sh", "-c", f"echo what is wrong; exit {code}"]
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "set_up_step.py", "torch (1 of 3)", *pip],
        capture_output=True,
        text=True,
        check=False,
    )
    line, *rest = done.stdout.splitlines()
    assert re.fullmatch(rf"torch \(1 of 3\): {'failed' if code else 'done'} after \d+ s", line)
    assert (done.returncode, rest) == (code, shown)


# `make constraints`


def test_what_pip_resolves_is_written_down(
    tmp_path: Path, checkout: Path, environment: dict[str, str]
) -> None:
    project = '[project]\nname = "penstock"\nversion = "1"\noptional-dependencies.dev = ["torch"]\n'
    (tmp_path / "pyproject.toml").write_text(f"{project}[tool.setuptools]\npackages = []\n")
    for python in PYTHONS:
        (tmp_path / f"python{python}").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (tmp_path / f"python{python}").chmod(0o755)
    release = pins("3.11")["torch"]
    (tmp_path / "held.txt").write_text(f"torch=={release}\n")
    subprocess.run(
        [sys.executable, "-m", "tools.constraints", "held.txt", "written.txt"],
        cwd=tmp_path,
        env=environment
        | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "PIP_NO_BUILD_ISOLATION": "0",
        },
        check=True,
        timeout=100,
    )
    written = (tmp_path / "written.txt").read_text().splitlines()
    assert [line for line in written if not line.startswith("#")] == [
        "other==5.0",
        f"torch=={release}",
    ]


def test_a_release_that_differs_has_a_line_for_each_python() -> None:
    found = {"3.11": {"a": "1", "b": "1", "c": "1"}, "3.12": {"a": "1", "b": "2", "d": "1"}}
    assert list(constraints.lines(found)) == [
        "a==1",
        'b==1 ; python_version < "3.12"',
        'b==2 ; python_version >= "3.12"',
        "c==1",
        "d==1",
    ]


# What is installed for what


LISTS = {
    ".venv-clients": "tests/clients/requirements.txt",
    ".venv-clients-newest": "tests/clients/requirements-newest.txt",
    ".venv-agents": "tests/agents/requirements.txt",
    ".venv-agents-openai-2": "tests/agents/requirements-openai-2.txt",
    ".venv-deploy": "tests/deploy/tools/requirements.txt",
}
"""Environment -> all that is installed into it."""


NPM = {"test-deploy": "tests/deploy/tools", "test-agents": "tests/agents/programs"}
"""Target -> the folder of what npm installs for it."""


def commands(folder: Path, target: str) -> list[str]:
    """What `make` would do for `target`."""
    made = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target],
        cwd=folder,
        env=bare_environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    return made.stdout.splitlines()


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A checkout as it was cloned."""
    copy_files(tmp_path, "Makefile", "constraints.txt", "pyproject.toml", *LISTS.values())
    copy_files(tmp_path, *(f"{folder}/package-lock.json" for folder in NPM.values()))
    return tmp_path


def test_running_installs_no_tools(fresh: Path) -> None:
    run, test = ("\n".join(commands(fresh, target)) for target in ("run", "test"))
    assert "[dev]" not in run
    assert "[dev]" in test
    before = run.index("0.3 GB"), run.index("2.7 GB")
    assert max(before) < run.index("pip install")


@pytest.mark.parametrize(("environment", "requirements"), LISTS.items())
def test_an_environment_has_what_its_list_says(
    fresh: Path, environment: str, requirements: str
) -> None:
    made = " ".join(commands(fresh, f"{environment}/.installed"))
    assert f" -m venv --clear {environment} " in made
    assert f" {environment}/bin/python -m pip install " in made
    assert re.findall(r"--requirement (\S+)", made) == [requirements]


@pytest.mark.parametrize("folder", NPM.values())
def test_each_package_of_npm_has_a_checksum_and_no_address(folder: str) -> None:
    lock = json.loads((REPOSITORY / folder / "package-lock.json").read_text())
    packages = [package for name, package in lock["packages"].items() if name]
    assert packages
    assert all(package["integrity"].startswith("sha512-") for package in packages)
    assert not any("resolved" in package for package in packages)


@pytest.mark.parametrize(("target", "folder"), NPM.items())
def test_npm_installs_what_its_lock_holds_and_runs_no_script(
    fresh: Path, target: str, folder: str
) -> None:
    made = " ".join(commands(fresh, target))
    assert re.findall(r"\bci --prefix (\S+) --ignore-scripts ", made) == [folder]


@pytest.mark.parametrize("target", ["test", "test-long"])
def test_the_clients_of_both_environments_are_installed(fresh: Path, target: str) -> None:
    made = " ".join(commands(fresh, target))
    assert re.findall(r"--requirement (tests/clients/\S+)", made) == [
        LISTS[".venv-clients"],
        LISTS[".venv-clients-newest"],
    ]


def test_what_is_set_up_is_left_alone(fresh: Path) -> None:
    (fresh / ".venv").mkdir()
    for ready in (".torch-ready", ".run-ready", ".test-ready"):
        (fresh / ".venv" / ready).touch()
    assert commands(fresh, "run") == ["exec .venv/bin/penstock serve "]
    assert not re.search(r"\bpip\b", "\n".join(commands(fresh, "check")))
