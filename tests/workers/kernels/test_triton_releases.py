"""What workers import of Triton, which CI has in a newer release than GPU images."""

import ast
from importlib import import_module
from pathlib import Path

import workers

SINCE_3_6 = {
    ("triton", "knobs"),
    ("triton.compiler.compiler", "max_shared_mem"),
    ("triton.language.extra.cuda", "gdc_launch_dependents"),
    ("triton.language.extra.cuda", "gdc_wait"),
    ("triton.tools.tensor_descriptor", "TensorDescriptor"),
}
"""Names that release 3.6 has in these modules: to be looked up there before one is added."""


def test_names_are_those_that_old_releases_have_too() -> None:
    imported = {
        (node.module, name.name)
        for file in Path(workers.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "triton"
        for name in node.names
    }
    assert imported == SINCE_3_6
    assert all(hasattr(import_module(module), name) for module, name in SINCE_3_6)
