"""Every value of values.yaml counts, and nothing that is not there is accepted."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm import CHART, Helm3, Helm4, HelmError, Values

KeyPath = tuple[str, ...]
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
CONTEXTS: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "changes.yaml").read_text()
)
# Where any key is right, with values of one type: what Kubernetes or an operator calls a map.
MAPS = {
    ("commonLabels",),
    ("podAnnotations",),
    ("podLabels",),
    ("nodeSelector",),
    ("service", "annotations"),
    ("ingress", "annotations"),
    ("httpRoute", "annotations"),
    ("inferencePool", "annotations"),
    ("serviceAccount", "annotations"),
    ("monitoring", "labels"),
    ("monitoring", "prometheusRule", "alertLabels"),
    ("monitoring", "dashboard", "labels"),
    ("monitoring", "dashboard", "annotations"),
    ("autoscaling", "keda", "prometheus", "metadata"),
    *(
        (*above, "resources", kind)
        for above in ((), ("storage", "prefetch"), ("tests",))
        for kind in ("requests", "limits")
    ),
}


def leaves(tree: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Paths of values that are no objects, or empty ones."""
    if isinstance(tree, dict) and tree:
        for key, below in tree.items():
            yield from leaves(below, (*path, key))
    else:
        yield path


def objects(tree: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Paths of objects, the empty ones too."""
    if isinstance(tree, dict):
        yield path
        for key, below in tree.items():
            yield from objects(below, (*path, key))


def at(tree: Any, path: KeyPath) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def has(tree: Any, path: KeyPath) -> bool:
    try:
        at(tree, path)
    except KeyError:
        return False
    return True


def with_value(values: Values, path: KeyPath, value: Any) -> dict[str, Any]:
    """A copy with `value` at `path`, where there may be nothing."""
    result = copy.deepcopy(dict(values))
    below = result
    for key in path[:-1]:
        below = below.setdefault(key, {})
    below[path[-1]] = value
    return result


LEAVES = sorted(leaves(DEFAULTS))
OBJECTS = sorted(objects(DEFAULTS))
closed = pytest.mark.parametrize(
    "path", [each for each in OBJECTS if each not in MAPS], ids=".".join
)


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_a_value_changes_what_is_rendered(path: KeyPath, helm4: Helm4) -> None:
    contexts = [each for each in CONTEXTS if has(each["changes"], path)]
    assert len(contexts) == 1, "tests/deploy/chart/changes.yaml must have one change of each value"
    (context,) = contexts
    changed = with_value(context["base"], path, at(context["changes"], path))
    assert helm4.template(changed) != helm4.template(context["base"])


# Another value for each key of an entry of `models`, of which values.yaml has no example.
OF_A_MODEL: dict[str, Any] = {
    "name": "other",
    "model": "/models/other",
    "aliases": ["gpt"],
    "options": {"max_model_len": 512},
    "device": "cuda",
    "gpus": 2,
    "replicas": 3,
    "resources": {"limits": {"memory": "9Gi"}},
    "nodeSelector": {"pool": "fast"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "autoscaling": {"max": 9},
    "host": "chat.example.org",
    "path": "/chat",
}
OF_A_RELEASE: dict[str, dict[str, Any]] = {
    "gpus": {"device": "cuda"},
    "autoscaling": {"autoscaling": {"hpa": {"enabled": True}}},
    "host": {"ingress": {"enabled": True, "host": "example.org"}},
    "path": {"ingress": {"enabled": True, "host": "example.org"}},
}


def test_every_key_of_a_model_is_tried() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert OF_A_MODEL.keys() == schema["definitions"]["model"]["properties"].keys()


@pytest.mark.parametrize("key", OF_A_MODEL)
def test_a_key_of_a_model_changes_what_is_rendered(key: str, helm4: Helm4) -> None:
    model = {"name": "chat", "model": "/models/chat"}
    base = {"layout": "perModel", **OF_A_RELEASE.get(key, {})}
    rendered = helm4.template(base | {"models": [model]})
    assert helm4.template(base | {"models": [model | {key: OF_A_MODEL[key]}]}) != rendered


def test_no_change_is_of_a_value_that_is_not_there() -> None:
    for context in CONTEXTS:
        for path in leaves(context["changes"]):
            assert any(path[: len(leaf)] == leaf for leaf in LEAVES), path


@closed
def test_an_unknown_key_is_refused(path: KeyPath, helm3: Helm3, helm4: Helm4) -> None:
    values = with_value({}, (*path, "unknownKey"), "1")
    for helm in (helm3, helm4):
        with pytest.raises(HelmError, match="unknownKey"):
            helm.template(values)


@pytest.mark.parametrize("path", sorted(MAPS), ids=".".join)
def test_a_map_takes_any_key_but_one_type(path: KeyPath, helm3: Helm3, helm4: Helm4) -> None:
    for helm in (helm3, helm4):
        helm.template(with_value({}, (*path, "unknownKey"), "1"))
        with pytest.raises(HelmError, match="unknownKey"):
            helm.template(with_value({}, (*path, "unknownKey"), ["1"]))


def test_no_object_of_the_schema_is_open() -> None:
    """Also those that values.yaml has no example of: entries of lists, optional objects."""

    def opened(schema: Any, path: str) -> Iterator[str]:
        if isinstance(schema, list):
            for below in schema:
                yield from opened(below, path)
        elif isinstance(schema, dict):
            of_objects = schema.get("type") == "object" or "properties" in schema
            if of_objects and schema.get("additionalProperties", True) is True:
                yield path
            for key, below in schema.items():
                yield from opened(below, f"{path}/{key}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    # A parent chart's own, and pieces of manifests, which Kubernetes checks.
    assert set(opened(schema, "")) == {"/properties/global", "/definitions/manifest"}


def test_every_default_is_in_the_schema() -> None:
    """A value that the schema has and values.yaml does not is one that nobody finds."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(DEFAULTS)
