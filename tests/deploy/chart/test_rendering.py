"""Every example release renders, the same under both versions of Helm, and is linted."""

import pytest

from tests.deploy.chart.ci_values import NAMES, ci_values
from tests.deploy.helm import Helm3, Helm4, HelmError


@pytest.mark.parametrize("name", NAMES)
def test_both_helms_render_the_same(name: str, helm3: Helm3, helm4: Helm4) -> None:
    values = ci_values(name)
    rendered = helm3.template(values)
    assert rendered == helm4.template(values)
    named = [(each["kind"], each["metadata"]["name"]) for each in rendered]
    assert len(named) == len(set(named))


@pytest.mark.parametrize("name", NAMES)
def test_strict_linting_finds_nothing(name: str, helm3: Helm3, helm4: Helm4) -> None:
    values = ci_values(name)
    assert helm3.lint(values) == []
    assert helm4.lint(values) == []


def test_linting_finds_what_is_wrong(helm3: Helm3, helm4: Helm4) -> None:
    for helm in (helm3, helm4):
        assert any("replicas" in line for line in helm.lint({"replicas": "two"}))


@pytest.mark.parametrize("name", NAMES)
def test_names_are_those_of_the_release(name: str, helm3: Helm3) -> None:
    """Two releases share one namespace."""
    values = ci_values(name)

    def names(release: str) -> set[tuple[str, str]]:
        rendered = helm3.template(values, release=release)
        return {(each["kind"], each["metadata"]["name"]) for each in rendered}

    assert names("one") & names("two") == set()


@pytest.mark.parametrize("name", NAMES)
def test_notes_name_the_release(name: str, helm4: Helm4) -> None:
    notes = helm4.files(ci_values(name), release="north", namespace="south")["NOTES.txt"]
    assert "north" in notes
    assert "south" in notes
    assert "<no value>" not in notes


def test_a_value_of_another_chart_s_global_is_let_pass(helm3: Helm3, helm4: Helm4) -> None:
    for helm in (helm3, helm4):
        assert helm.template({"global": {"imageRegistry": "here"}}) == helm.template({})


def test_a_misspelt_value_is_an_error(helm3: Helm3, helm4: Helm4) -> None:
    for helm in (helm3, helm4):
        with pytest.raises(HelmError, match="replica"):
            helm.template({"replica": 2})
