"""docs/deploy.md: its commands render, with the files that it shows; the chart words errors so."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.deploy.chart.selection import DAEMONS
from tests.deploy.helm import (
    CHART,
    HELM3,
    REPOSITORY,
    Helm3,
    HelmError,
    Values,
    environment,
    objects,
)

PAGE = (REPOSITORY / "docs" / "deploy.md").read_text()
FILES = dict(re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", PAGE, re.DOTALL))
"""The files of values that the page shows, by the name in their first line."""

COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("helm ") and " deploy/helm/penstock " in line
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_renders(command: str, tmp_path: Path) -> None:
    """As `helm template`, which reads the same flags and needs no cluster."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    _, _, flags = command.partition(" deploy/helm/penstock ")
    done = subprocess.run(
        [HELM3, "template", "llm", CHART, *shlex.split(flags)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert {found["kind"] for found in objects(done.stdout)} & set(DAEMONS)


def test_every_file_is_used() -> None:
    used = {word for command in COMMANDS for word in shlex.split(command) if word.endswith(".yaml")}
    assert used == set(FILES)


@pytest.mark.parametrize(
    "values",
    [
        {
            "device": "cuda",
            "models": [{"name": "chat", "model": "/m", "options": {"pipeline_stages": 2}}],
        },
        {
            "multinode": {"mode": "lws"},
            "device": "cuda",
            "gpus": 4,
            "models": [{"name": "chat", "model": "/m", "options": {"pipeline_stages": 4}}],
        },
        {"terminationGracePeriodSeconds": 20},
        {"state": {"claim": True}, "replicas": 2},
        {"strategy": {"type": "RollingUpdate"}},
    ],
)
def test_errors_are_worded_as_in_the_page(helm3: Helm3, values: Values) -> None:
    with pytest.raises(HelmError) as caught:
        helm3.template(values, release="llm")
    said = str(caught.value)
    assert any(line and line in said for line in examples_of_errors())


def examples_of_errors() -> list[str]:
    """The lines of the page's examples."""
    blocks = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]
