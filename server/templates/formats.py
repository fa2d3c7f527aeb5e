"""Where the format of a model's turns is from: its checkpoint, its template, or a table."""

from contextlib import suppress
from typing import Literal

from engine_core.turn_format import TurnFormat
from server.templates.learnt_format import NotLearntError, check, learn
from server.templates.loaded_template import LoadedTemplate
from server.templates.turn_writer import TurnWriter
from server.turns.declared_format import NotDeclaredError, declared_format
from server.turns.known_formats import known_format

FormatSource = Literal["declared", "learnt", "table"]


def format_of(template: LoadedTemplate) -> tuple[TurnFormat, FormatSource]:
    """The format of a template's turns, and where it is from. Raises NotLearntError."""
    if template.response_template is not None:
        # What cannot be read, or reads the template's own calls otherwise, is of no use.
        with suppress(NotDeclaredError, NotLearntError):
            form = declared_format(template.response_template)
            check(TurnWriter(template), form)
            return form, "declared"
    try:
        return learn(template), "learnt"
    except NotLearntError:
        known = known_format(template.source)
        if known is None:
            raise
        return known, "table"
