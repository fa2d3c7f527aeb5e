"""The compliance runner of Open Responses, which no registry has: `make test-agents` runs the one
of a clone that OPEN_RESPONSES names."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.scripts import call
from tests.e2e.daemon import Daemon, running
from tests.e2e.full_daemon import KEY, guarded_arguments
from tests.e2e.scripted_model import write_scripted_model
from tests.e2e.users.node_programs import MODULES, run

CLONE = os.environ.get("OPEN_RESPONSES")
TSX = MODULES / "tsx" / "dist" / "cli.mjs"
# Its cases name no script: each is known by a word of its question.
SCRIPTS = {
    "San Francisco": (call("get_weather", {"location": "San Francisco"}),),
    "Say hello": ("Hello there, you.",),
    "Count from": ("1, 2, 3, 4, 5",),
    "Repeat only": ("Four.",),
    "What is my name": ("Alice.",),
    "Summarize": ("A launch on Tuesday.",),
}
NOT_SERVED = "image-input"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = write_scripted_model(tmp_path_factory.mktemp("scripted"), SCRIPTS)
    state = ("--state-dir", str(tmp_path_factory.mktemp("state")))
    with running(*guarded_arguments({"scripted": folder}), *state) as daemon:
        yield daemon


@pytest.mark.agents
@pytest.mark.skipif(not CLONE, reason="OPEN_RESPONSES names no clone of openresponses")
def test_what_is_served_complies(daemon: Daemon, tmp_path: Path) -> None:
    """All of its cases but that of an image."""
    clone = Path(CLONE or "")
    for part in ("bin", "src/lib", "src/generated"):
        shutil.copytree(clone / part, tmp_path / part)
    (tmp_path / "node_modules").symlink_to(MODULES)
    where = ("--base-url", f"{daemon.url}/v1", "--api-key", KEY, "--model", "scripted")
    ended = run(tmp_path, TSX, "bin/compliance-test.ts", *where, "--json", variables={})
    results = json.loads(ended.output)["results"]
    failed = [result for result in results if result["status"] == "failed"]
    unexpected = [each for each in failed if each["id"] != NOT_SERVED]
    assert not unexpected
    assert {"basic-response", "streaming-response", "tool-calling"} <= {
        each["id"] for each in results if each["status"] == "passed"
    }
