"""The wheel, installed into a clean environment and used from a folder full of decoys."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from server import __version__
from tests.patience import PATIENCE
from tests.project.requirements import needed_to_run
from tests.server.checkpoint_folders import LLAMA, write_checkpoint

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("server", "engine_core", "workers")
NOT_INSTALLED = ("benchmarks", "examples", "tests", "tools")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_source(folder / "source"), folder / "dist")


@pytest.fixture(scope="module")
def penstock(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of a fresh environment with only the wheel in it, where the packages that
    penstock needs to run, and no others, are borrowed from this one."""
    folder = tmp_path_factory.mktemp("install")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", str(wheel))
    (site_packages,) = (folder / "venv").glob("lib/python*/site-packages")
    for package in needed_to_run():
        borrow(package, site_packages)
    return folder / "venv" / "bin" / "penstock"


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Path:
    """A working folder whose modules are called like penstock's packages."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for package in PACKAGES:
        (folder / f"{package}.py").write_text(f"raise RuntimeError('the wrong {package}')\n")
    return folder


def borrow(package: str, site_packages: Path) -> None:
    """Link to what is installed of a package here, but for its programs."""
    installed = distribution(package)
    for name in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
        link = site_packages / name
        if not link.exists():  # several packages may have a folder in common
            link.symlink_to(str(installed.locate_file(name)))


def copy_source(target: Path) -> Path:
    """Building in the repository itself would leave folders behind."""
    for package in (*PACKAGES, *NOT_INSTALLED):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, target / package, ignore=ignored)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / file, target)
    return target


def build_wheel(source: Path, target: Path) -> Path:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source))
    (wheel,) = target.glob("*.whl")
    return wheel


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def test_the_wheel_holds_every_file_of_the_source_packages_and_no_other(wheel: Path) -> None:
    """Modules, and data that pyproject.toml names; no benchmarks, tests or tools."""
    expected = {
        str(file.relative_to(REPOSITORY))
        for package in PACKAGES
        for file in (REPOSITORY / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    packed = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in packed if name.startswith(f"penstock-{__version__}.dist-info/")}
    assert packed - metadata == expected


def test_help_version_and_bench_without_targets(penstock: Path, foreign_folder: Path) -> None:
    def say(*command: str | Path) -> str:
        return subprocess.check_output(command, cwd=foreign_folder, text=True)

    assert "serve models over HTTP" in say(penstock, "--help")
    assert say(penstock, "--version") == f"penstock {__version__}\n"
    code = (
        "from server.bench import report as read; "
        "print(read.__file__, read.read_targets() == read.Targets())"
    )
    file, none = say(penstock.parent / "python", "-P", "-c", code).split()
    assert file.startswith(str(penstock.parents[1]))
    assert none == "True"


@pytest.fixture
def private() -> Iterator[Path]:
    """An empty folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_it_serves(penstock: Path, foreign_folder: Path, private: Path) -> None:
    write_checkpoint(foreign_folder / "tiny", LLAMA)
    flags = ["--load-format", "dummy", "--device", "cpu", "--threads", "1", "--port", "0"]
    with subprocess.Popen(
        [str(penstock), "serve", "tiny", *flags],
        cwd=foreign_folder,
        env=dict(os.environ, TMPDIR=str(private)),
        stderr=subprocess.PIPE,
        text=True,
    ) as daemon:
        try:
            url = ready_url(daemon)
            assert complete(url, tokens=3) == 3
            assert described(url, "CompletionRequest", "stop").startswith("At most 16, of")
            assert len(list(private.iterdir())) == 1
            daemon.terminate()
            assert daemon.wait(PATIENCE) == 0
            assert list(private.iterdir()) == []
        finally:
            daemon.kill()


def ready_url(daemon: subprocess.Popen[str]) -> str:
    """Read the daemon's log up to the line that names its address."""
    assert daemon.stderr is not None
    log = ""
    for line in daemon.stderr:
        log += line
        if found := re.search(r"ready on (http://\S+)", line):
            return found[1]
    raise AssertionError(f"ended while starting:\n{log}")


def described(url: str, struct: str, field: str) -> str:
    """The text under a field in the installed source."""
    with urllib.request.urlopen(f"{url}/openapi.json") as response:
        component = json.load(response)["components"]["schemas"][struct]
    return component["properties"][field]["description"]


def complete(url: str, tokens: int) -> int:
    """Ask for a completion; the tokens that it counts."""
    body = {"model": "tiny", "prompt": "w2 w3", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["usage"]["completion_tokens"]
