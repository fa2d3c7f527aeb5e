"""The example releases in the chart's folder ci/."""

from typing import Any

import yaml

from tests.deploy.helm import CHART

NAMES = sorted(file.stem for file in (CHART / "ci").glob("*.yaml"))


def ci_values(name: str) -> dict[str, Any]:
    """The values of one."""
    return yaml.safe_load((CHART / "ci" / f"{name}.yaml").read_text())
