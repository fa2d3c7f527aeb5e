"""Where the format of a model's turns is from: its checkpoint, its template, or a table."""

import math
from contextlib import suppress

from engine_core.turn_format import TurnFormat
from server.templates.learnt_format import NotLearntError, check, learn
from server.templates.loaded_template import LoadedTemplate
from server.templates.protocol import FormatSource, FoundFormat
from server.templates.turn_writer import TooSlowError, TurnWriter
from server.turns.declared_format import NotDeclaredError, declared_format
from server.turns.known_formats import known_format

# Of processor time, beside what probing a template's messages takes.
_LEARNING_S = 0.6


def find_format(template: LoadedTemplate) -> FoundFormat:
    """The format of a template's turns, or why there is none."""
    try:
        form, source = format_of(template, _LEARNING_S)
    except (NotLearntError, TooSlowError) as error:
        return FoundFormat(reason=str(error))
    except Exception as error:  # a template is a program: what it writes may be anything
        return FoundFormat(reason=f"its calls cannot be learnt: {type(error).__name__}")
    return FoundFormat(form, source)


def format_of(
    template: LoadedTemplate, seconds: float = math.inf
) -> tuple[TurnFormat, FormatSource]:
    """The format of a template's turns, and where it is from. Raises NotLearntError, and
    TooSlowError after `seconds` of processor time."""
    if template.response_template is not None:
        # What cannot be read, or reads the template's own calls otherwise, is of no use.
        with suppress(NotDeclaredError, NotLearntError):
            form = declared_format(template.response_template)
            check(TurnWriter(template, seconds=seconds), form)
            return form, "declared"
    try:
        return learn(template, seconds), "learnt"
    except NotLearntError:
        known = known_format(template.source)
        if known is None:
            raise
        return known, "table"
