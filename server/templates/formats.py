"""Where the format of a model's turns is from."""

from server.templates.learnt_format import learn
from server.templates.loaded_template import LoadedTemplate
from server.turns.turn_format import TurnFormat


def format_of(template: LoadedTemplate) -> tuple[TurnFormat, str]:
    return learn(template), "learnt"
