"""Chat templates as transformers understands them, in Jinja's immutable sandbox."""

import json
import secrets
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.templates.protocol import ChatTemplate, Conversation

# In a rendered prompt. Its bytes count against `MAX_PENDING_TOKENS`, so a longer one would be
# refused all the same.
MAX_CHARS = 16 * 1024 * 1024


def compile_template(source: str) -> Template:
    """Raises TemplateError; may take any time and memory, as rendering may."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
    )
    environment.filters["tojson"] = _to_json  # pyright: ignore[reportUnknownMemberType]
    names = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment.from_string(source, globals=names)


def render(compiled: Template, template: ChatTemplate, conversation: Conversation) -> str:
    """The prompt. Raises whatever the template does, TemplateError where it refuses."""
    if conversation.continue_final_message:
        return _render_open_ended(compiled, template, conversation)
    variables = {
        **template.tokens,
        **conversation.variables,
        "messages": conversation.messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": conversation.add_generation_prompt,
    }
    pieces: list[str] = []
    room = MAX_CHARS
    for piece in compiled.generate(variables):
        room -= len(piece)
        if room < 0:
            raise TemplateError(f"it makes more than {MAX_CHARS} characters of them")
        pieces.append(piece)
    return "".join(pieces)


def _render_open_ended(
    compiled: Template, template: ChatTemplate, conversation: Conversation
) -> str:
    """The prompt up to the end of the last message's text, found by a mark in it."""
    *before, last = conversation.messages
    # The blank shows whether the template strips contents.
    word = f"end-{secrets.token_hex(8)}"
    marked = {**last, "content": _followed_by(f"{word} ", last["content"])}
    text = render(
        compiled,
        template,
        Conversation(
            messages=[*before, marked],
            add_generation_prompt=False,
            variables=conversation.variables,
        ),
    )
    end = text.rfind(word)
    if end < 0:
        raise TemplateError("it leaves out the final message, which therefore cannot be continued")
    stripped = not text.startswith(" ", end + len(word))
    return text[:end].rstrip() if stripped else text[:end]


def _followed_by(text: str, content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content + text
    *before, last = content
    return [*before, {**last, "text": last["text"] + text}]


class GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's text for training: here only a scope."""

    tags = {"generation"}  # noqa: RUF012 -- Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML's markup.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
