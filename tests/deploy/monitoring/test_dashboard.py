"""The Grafana dashboard as JSON: Grafana itself is not run here."""

from itertools import combinations
from typing import Any

import pytest

from tests.deploy.helm import Manifest
from tests.deploy.monitoring.expressions import dashboard


@pytest.fixture(scope="module")
def board(manifests: list[Manifest]) -> dict[str, Any]:
    return dashboard(manifests)


def test_panels_lie_beside_each_other(board: dict[str, Any]) -> None:
    for one, other in combinations(board["panels"], 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (one["title"], other["title"])
    assert max(panel["gridPos"]["x"] + panel["gridPos"]["w"] for panel in board["panels"]) == 24


def test_panels_have_ids_titles_and_texts(board: dict[str, Any]) -> None:
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"], panel["title"]


def test_every_query_obeys_the_variables(board: dict[str, Any]) -> None:
    assert [each["name"] for each in board["templating"]["list"]] == [
        "datasource", "namespace", "model",
    ]  # fmt: skip
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
            selectors = target["expr"].count("penstock_")
            assert target["expr"].count('{namespace=~"$namespace"') == selectors, target["expr"]
