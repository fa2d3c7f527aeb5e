"""Reading a checkpoint's chat template, and the special tokens that templates name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from engine_core.tokenization.tokenizer_settings import TokenizerSettings
from server.templates.protocol import ChatTemplate
from workers.contract.checkpoint.folder_files import (
    CONFIG_BYTES,
    UnsafeFileError,
    find_file,
    optional,
    read_text,
)
from workers.contract.model_config import ModelConfigError

_CONFIG = "tokenizer_config.json"
_NAMED = "additional_chat_templates"
_DEFAULT = "default"


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


_Written = str | list[_NamedTemplate] | dict[str, str] | None


class NoChatTemplateError(ValueError):
    """A model has no usable chat template. The message is one line with the reason."""


class MissingChatTemplateError(NoChatTemplateError):
    """A model has no chat template in any form."""


def read_chat_template(folder: Path) -> ChatTemplate:
    """The chat template of the model in `folder`: of several, the one called `default`. Raises
    NoChatTemplateError: none of that name, a file that cannot be read; MissingChatTemplateError."""
    names: list[str] = []
    try:
        for file, found in _candidates(folder):
            templates = _by_name(found)
            if _DEFAULT in templates:
                return ChatTemplate(
                    source=templates[_DEFAULT],
                    file=file,
                    tokens=TokenizerSettings(folder).template_tokens,
                    response_template=_response_template(folder),
                )
            names += templates
    except (ModelConfigError, msgspec.ValidationError) as error:
        raise NoChatTemplateError(f"its chat template cannot be read: {error}") from None
    if names:
        known = ", ".join(names)
        raise NoChatTemplateError(f"none of its chat templates is called {_DEFAULT}: {known}")
    raise MissingChatTemplateError("it has no chat template")


def _response_template(folder: Path) -> dict[str, Any] | None:
    """The declaration of how a turn is read, if the checkpoint has one in the form of an object."""
    found = (optional(folder, _CONFIG, dict[str, Any]) or {}).get("response_template")
    return cast(dict[str, Any], found) if isinstance(found, dict) else None


def check_template_files(folder: Path) -> None:
    """Raises UnsafeFileError for a file of templates. Chats are refused for other faults."""
    try:
        list(_candidates(folder))
    except UnsafeFileError:
        raise
    except ModelConfigError:
        pass


def _candidates(folder: Path) -> Iterator[tuple[str, object]]:
    """Yield the files that may hold templates, and their contents, in order of precedence."""
    own = "chat_template.jinja"
    if find_file(folder, own):
        yield own, read_text(folder, own)
    named = sorted((folder / _NAMED).glob("*.jinja"))
    if named:
        yield _NAMED, {path.stem: _text_of_named(folder, path) for path in named}
    for name in (_CONFIG, "chat_template.json"):
        yield name, (optional(folder, name, dict[str, Any]) or {}).get("chat_template")


def _text_of_named(folder: Path, path: Path) -> str:
    name = path.relative_to(folder)
    if path.stem == _DEFAULT:
        return read_text(folder, name)
    find_file(folder, name, CONFIG_BYTES)
    return path.stem  # only the default's text is read


def _by_name(found: object) -> dict[str, str]:
    """The templates by name, in whichever form the file has them."""
    written: _Written = msgspec.convert(found, _Written)
    if isinstance(written, str):
        written = {_DEFAULT: written}
    elif isinstance(written, list):
        written = {entry.name: entry.template for entry in written}
    return {name: source for name, source in (written or {}).items() if source}
