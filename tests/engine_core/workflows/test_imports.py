"""A workflow brings its own modules: an encoder's engine core starts without grammars."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import engine_core.__main__
from engine_core.workflows.base import workflow_for
workflow_for(sys.argv[1], has_kv_cache=sys.argv[2] == "cached")
print(*sys.modules)
"""


def modules_of(task: str, cache: str) -> set[str]:
    """The modules that the engine core of a model with this task imports."""
    command = [sys.executable, "-c", SCRIPT, task, cache]
    return set(subprocess.check_output(command, text=True).split())


@pytest.mark.parametrize("task", ["embed", pytest.param("classify", marks=pytest.mark.long)])
def test_an_encoder_imports_nothing_of_grammars_and_a_generator_does(task: str) -> None:
    modules = modules_of(task, "none")
    assert "engine_core.schedulers.prefill_only" in modules
    assert not [name for name in modules if name.startswith(("llguidance", "engine_core.struct"))]
    assert "engine_core.schedulers.decoder" not in modules
    assert {"llguidance", "engine_core.structured.grammar"} <= modules_of("generate", "cached")
