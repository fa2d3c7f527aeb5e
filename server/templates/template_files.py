"""Where a checkpoint keeps its chat template, and the special tokens that templates name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine_core.tokenization.checkpoint.tokenizer_settings import TokenizerSettings
from server.templates.protocol import ChatTemplate
from workers.contract.model_config import ModelConfigError, read_json

_CONFIG = "tokenizer_config.json"
_NAMED = "additional_chat_templates"
_DEFAULT = "default"


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


_Written = str | list[_NamedTemplate] | dict[str, str] | None


class NoChatTemplateError(ValueError):
    """A model has no usable chat template; the message says why, in one line."""


def read_chat_template(folder: Path) -> ChatTemplate:
    """The template of a folder's model: a file of its own before one inside JSON; if there are
    several by name, `default`.

    Raises NoChatTemplateError: none, none of that name, a file that cannot be read.
    """
    try:
        return _read(folder)
    except (ModelConfigError, OSError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise NoChatTemplateError(f"its chat template cannot be read: {error}") from None


def _read(folder: Path) -> ChatTemplate:
    names: list[str] = []
    for file, found in _candidates(folder):
        templates = _by_name(found)
        if _DEFAULT in templates:
            source, tokens = templates[_DEFAULT], TokenizerSettings(folder).template_tokens
            return ChatTemplate(source=source, file=file, tokens=tokens)
        names += templates
    if names:
        known = ", ".join(names)
        raise NoChatTemplateError(f"none of its chat templates is called {_DEFAULT}: {known}")
    raise NoChatTemplateError("it has no chat template")


def _candidates(folder: Path) -> Iterator[tuple[str, object]]:
    """Each file that may hold templates with its templates, in order of precedence."""
    own = folder / "chat_template.jinja"
    if own.exists():
        yield own.name, own.read_text("utf-8")
    named = sorted((folder / _NAMED).glob("*.jinja"))
    if named:
        yield _NAMED, {path.stem: path.read_text("utf-8") for path in named}
    for name in (_CONFIG, "chat_template.json"):
        yield name, _json(folder / name).get("chat_template")


def _by_name(found: object) -> dict[str, str]:
    """Templates by name, in whichever form the file has them."""
    written: _Written = msgspec.convert(found, _Written)
    if isinstance(written, str):
        written = {_DEFAULT: written}
    elif isinstance(written, list):
        written = {entry.name: entry.template for entry in written}
    return {name: source for name, source in (written or {}).items() if source}


def _json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file. Raises ModelConfigError."""
    return read_json(path) if path.exists() else {}
