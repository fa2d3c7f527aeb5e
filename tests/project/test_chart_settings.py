"""The chart's schema knows every key of the configuration file, and what its values may be."""

import json
from typing import Any

import msgspec
import pytest

from server.settings.setting_types import choices, declared_flags
from server.settings.settings import ModelSettings, Settings
from tests.project.source_tree import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "penstock"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# Values of the chart's own: server.port, tls, and so on.
OWN = {
    "models", "host", "port", "api_workers", "startup_timeout", "drain_timeout", "stall_timeout",
    "api_key_files", "tls_cert", "tls_key", "model", "names",
    # A pod is one host.
    "executor", "ray_address", "nodes", "master", "cluster_secret_file", "interface",
}  # fmt: skip

options = pytest.mark.parametrize(
    ("definition", "struct"), [("server options", Settings), ("model options", ModelSettings)]
)


def properties(definition: str) -> dict[str, Any]:
    """The schemas of an object's keys."""
    return SCHEMA["definitions"][definition]["properties"]


@options
def test_every_setting_is_a_value(definition: str, struct: type[msgspec.Struct]) -> None:
    assert set(properties(definition)) == set(struct.__struct_fields__) - OWN


@options
def test_choices_are_the_flags(definition: str, struct: type[msgspec.Struct]) -> None:
    schemas = properties(definition)
    by_key = {
        field.name: set(allowed)
        for field, _ in declared_flags(struct)
        if (allowed := choices(field.type)) and field.name not in OWN
    }
    assert by_key
    for key, expected in by_key.items():
        assert set(schemas[key]["enum"]) == expected, key
