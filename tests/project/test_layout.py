"""Folders import each other one way, and tests mirror the source."""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.project.source_tree import REPOSITORY, modules, tree_of

PACKAGES = ("server", "engine_core", "workers")


def folder_imports(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """What each folder imports of the others, where a file directly in a package counts as a folder
    of its own. An import inside a function counts too."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for module, file in files.items():
        folder = _folder(module, files)
        for imported in _imported(tree_of(file), files):
            graph[folder].add(_folder(imported, files))
        graph[folder].discard(folder)
    return graph


def _folder(module: str, files: Mapping[str, Path]) -> str:
    package = module.rpartition(".")[0]
    return package if "." in package and files[module].name != "__init__.py" else module


def _imported(tree: ast.Module, files: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module in files:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & files.keys() or {node.module}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folders_import_each_other_in_a_circle(package: str) -> None:
    try:
        TopologicalSorter(folder_imports(modules(package))).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_imports_between_folders_are_found(tmp_path: Path) -> None:
    texts = {
        "p": "",
        "p.main": "from p import a\nimport p.b.two",
        "p.a": "",
        "p.a.one": "import os\nfrom p.a import three",
        "p.a.three": "def later():\n    from p.b.two import x",
        "p.b.two": "from p.c import Y",
        "p.c": "",
    }
    files = {name: tmp_path / f"{name}.py" for name in texts}
    files |= {"p": tmp_path / "__init__.py", "p.a": tmp_path / "a" / "__init__.py"}
    (tmp_path / "a").mkdir()
    for name, text in texts.items():
        files[name].write_text(text)
    graph = folder_imports(files)
    arrows = {(folder, other) for folder, others in graph.items() for other in others}
    assert arrows == {("p.main", "p.a"), ("p.main", "p.b"), ("p.a", "p.b"), ("p.b", "p.c")}


def test_all_of_workers_but_its_contract_is_forbidden_to_the_other_packages() -> None:
    """import-linter has no way to write "all but one": its list must name every room."""
    linter = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts = {contract["id"]: contract for contract in linter["contracts"]}
    rooms = {".".join(name.split(".")[:2]) for name in modules("workers")}
    forbidden = contracts["worker-contract"]["forbidden_modules"]
    assert set(forbidden) == rooms - {"workers", "workers.contract"}
    ignored = {name: contract.get("ignore_imports") for name, contract in contracts.items()}
    assert ignored.pop("torch") == ["server.models.convert_main -> transformers"]
    assert not any(ignored.values())


def test_tests_mirror_the_folders_of_the_source() -> None:
    for package in (*PACKAGES, "benchmarks", "tools"):
        for folder in (REPOSITORY / "tests" / package).rglob("__init__.py"):
            mirrored = folder.parent.relative_to(REPOSITORY / "tests")
            assert (REPOSITORY / mirrored).is_dir(), f"tests/{mirrored} has no {mirrored}"
