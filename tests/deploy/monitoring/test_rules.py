"""The rendered PrometheusRule under Prometheus' own tool: every alert fires when it should, and
then alone."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm import CHART, Helm3, Manifest
from tests.deploy.monitoring.alert_scenarios import HEALTHY, SCENARIOS, Scenario, unit_test
from tests.deploy.monitoring.expressions import alerts, rule_groups


@pytest.fixture(scope="module")
def rule_file(manifests: list[Manifest], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(rule_groups(manifests)))
    return path


def promtool(*arguments: object) -> str:
    """What promtool says. It must be content."""
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_valid(rule_file: Path, manifests: list[Manifest]) -> None:
    said = promtool("check", "rules", rule_file)
    assert f"{len(alerts(manifests))} rules found" in said


@pytest.mark.parametrize("values", ["keda", "hpa"])
def test_rules_of_other_values_are_valid(helm3: Helm3, values: str, tmp_path: Path) -> None:
    manifests = helm3.template(yaml.safe_load((CHART / "ci" / f"{values}.yaml").read_text()))
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rule_groups(manifests)))
    assert f"{len(alerts(manifests))} rules found" in promtool("check", "rules", path)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_alerts_of(scenario: Scenario, rule_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    tests = {"rule_files": [str(rule_file)], "evaluation_interval": "1m"}
    path.write_text(yaml.safe_dump({**tests, "tests": [unit_test(scenario)]}))
    promtool("test", "rules", path)


def test_every_alert_fires_in_a_scenario(manifests: list[Manifest]) -> None:
    fired = {alert["alertname"] for scenario in SCENARIOS for alert in scenario.firing}
    assert fired == {rule["alert"] for rule in alerts(manifests)}


def test_alerts_say_what_to_do(manifests: list[Manifest]) -> None:
    for rule in alerts(manifests):
        texts: dict[str, Any] = rule["annotations"]
        assert set(texts) == {"summary", "description", "runbook"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert len(texts["summary"]) < 80 < len(texts["runbook"]), rule["alert"]


def test_a_healthy_release_has_the_series_that_alerts_read(manifests: list[Manifest]) -> None:
    made = {name for name, _, _ in HEALTHY}
    read = {name for rule in alerts(manifests) for name in _metrics(rule["expr"])}
    assert read == made


def _metrics(expression: str) -> set[str]:
    return {word.split("{")[0] for word in expression.replace("(", " ").split() if "{" in word}
