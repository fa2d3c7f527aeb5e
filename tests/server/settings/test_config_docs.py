"""docs/configuration.md says what the code does."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from server.settings import defaults
from server.settings.config_file import read_config_file
from server.settings.setting_types import parse_size
from server.settings.settings import ModelSettings, Settings, SettingsError

PAGE = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
EXAMPLE = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]


def table(title: str) -> dict[str, list[str]]:
    """The rows of a section's table by key: type, default, meaning, error."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("` "): row[1:] for row in rows}


@pytest.mark.parametrize(("title", "struct"), [("The daemon", Settings), ("Models", ModelSettings)])
def test_every_key_is_described(title: str, struct: type[msgspec.Struct]) -> None:
    rows = table(title)
    assert set(rows) == set(struct.__struct_fields__)
    for field in msgspec.structs.fields(struct):
        kind, default = rows[field.name][:2]
        if field.required:
            assert default == "required"
        elif field.default == ():
            assert kind in {"strings", "integers", "list"}
        elif field.default is not None:
            written = default.strip("`")
            value = parse_size(written) if kind == "size" else written
            assert str(value).lower() == f"{field.default}".lower().removesuffix(".0")


def on_both(default: Callable[..., int], **options: bool) -> list[int]:
    """On a CPU, and on CUDA."""
    return [default(**options, on_cpu=on_cpu) for on_cpu in (True, False)]


STEPS, BLOCKS = defaults.max_step_tokens, defaults.block_size
DECODER, ENCODER = on_both(STEPS, cached=True), on_both(STEPS, cached=False)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("max_running", on_both(defaults.max_running)),
        ("block_size", [*on_both(BLOCKS), BLOCKS(generates=False, on_cpu=False)]),
        ("max_step_tokens", [DECODER[0], ENCODER[0], DECODER[1], ENCODER[1]]),
        ("kv_cache_memory", [defaults.CPU_KV_CACHE_BYTES >> 30]),
    ],
)
def test_defaults_that_depend_on_the_device_are_described(key: str, expected: list[int]) -> None:
    default = table("Models")[key][1]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\b", default)]
    assert numbers == expected


def test_the_example_is_valid(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(EXAMPLE)
    settings = read_config_file(tmp_path / "penstock.yaml")
    names = [("chat", "gpt-4o"), ("embed",), ("rerank",)]
    assert [model.names for model in settings.models] == names
    assert settings.models[0].model == str(tmp_path / "llama-3.1-8b")
    assert settings.models[1].model == "BAAI/bge-base-en-v1.5"


def test_the_errors_are_worded_as_in_the_page(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    for text in (
        "models: [{model: a}, {model: b, max_runing: 1}]",
        "models: [{model: a}]\nport: 1\nport: 2",
    ):
        file.write_text(text)
        with pytest.raises(SettingsError) as caught:
            read_config_file(file)
        message = str(caught.value).replace(str(file), "penstock.yaml")
        assert f"penstock: error: {message}\n" in PAGE


def test_links_lead_somewhere() -> None:
    headings = re.findall(r"(?m)^#+ (.+)$", PAGE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
    api = (Path(__file__).parents[3] / "docs/api.md").read_text()
    assert set(re.findall(r"\(configuration\.md#([^)]+)\)", api)) <= anchors
