"""Small formats of turns, one a feature."""

from engine_core.turn_format import (
    JSON_TYPES,
    CallFormat,
    Members,
    Reasoning,
    Slot,
    TurnFormat,
    Value,
)
from server.turns.known_formats import HARMONY, HERMES
from server.turns.turn_parser import Event, TurnParser

NAME, ARGUMENTS, ID, INDEX = Slot("name"), Slot("arguments"), Slot("id"), Slot("index")

SCHEMAS = {
    "get": {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "n": {"type": "integer"},
            "on": {"type": "boolean"},
            "any": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "of": {"type": "object"},
            "ref": {"$ref": "#/$defs/word"},
            "choice": {"anyOf": [{"$ref": "#/$defs/word"}, {"type": "null"}]},
        },
        "$defs": {"word": {"$ref": "#/definitions/text"}},
        "definitions": {"text": {"type": "string"}},
    },
    "get_all": {"type": "object"},
}


def members(*values: Value, before: str = "", between: str = "") -> Members:
    return Members(before=before, between=between, values=values)


LITERALS = tuple(name for name in JSON_TYPES if name != "string")
FORMS: dict[str, TurnFormat] = {
    "hermes": HERMES,
    "harmony": HARMONY,
    "bare": TurnFormat(
        calls=(
            CallFormat(call=('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}"), many=False),
        )
    ),
    "list": TurnFormat(
        calls=(
            CallFormat(
                open="[CALLS] [",
                call=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}'),
                between=", ",
                close="]",
            ),
        )
    ),
    "section": TurnFormat(
        calls=(
            CallFormat(
                open="<calls>",
                call=("<call>functions.", NAME, ":", INDEX, "<args>", ARGUMENTS, "</call>"),
                close="</calls>",
            ),
        )
    ),
    "id behind": TurnFormat(
        calls=(
            CallFormat(call=("<call>", NAME, " ", ARGUMENTS, "<id>", ID, "</id>", INDEX, "<end>")),
        )
    ),
    "tags with an id": TurnFormat(
        calls=(
            CallFormat(
                call=("<call>", NAME, ">", ARGUMENTS, "<id>", ID, "</call>"),
                members=members(Value(types=JSON_TYPES, open=">", close="</p>"), before="<p="),
            ),
        )
    ),
    "tags": TurnFormat(
        reasoning=Reasoning(open="<think>", close="</think>"),
        calls=(
            CallFormat(
                call=("<call>\n<function=", NAME, ">\n", ARGUMENTS, "</function>\n</call>"),
                members=members(
                    Value(types=LITERALS, open=">\n", close="\n</p>\n", dialect="python"),
                    Value(types=("string",), open=">\n", close="\n</p>\n"),
                    before="<p=",
                ),
            ),
        ),
    ),
    "typed": TurnFormat(
        calls=(
            CallFormat(
                call=('<call name="', NAME, '">', ARGUMENTS, "</call>"),
                members=members(
                    Value(types=LITERALS, open='" string="false">', close="</p>", dialect="json"),
                    Value(types=("string",), open='" string="true">', close="</p>"),
                    before='<p name="',
                ),
            ),
        )
    ),
    "pythonic": TurnFormat(
        calls=(
            CallFormat(
                open="[",
                call=(NAME, "(", ARGUMENTS, ")"),
                between=", ",
                close="]",
                members=members(
                    Value(types=LITERALS, open="=", dialect="python"),
                    Value(types=("string",), open="="),
                    between=", ",
                ),
            ),
        )
    ),
    "quotes": TurnFormat(
        calls=(
            CallFormat(
                call=("<call>", NAME, "{", ARGUMENTS, "}</call>"),
                members=members(
                    Value(types=JSON_TYPES, open=":", dialect="gemma", quote="<|'|>"), between=","
                ),
            ),
        )
    ),
    "text between markers": TurnFormat(
        reasoning=Reasoning(open="<hm>", close="</hm>"),
        text_markers=("<text>", "</text>"),
        calls=(CallFormat(call=("<call>", NAME, ARGUMENTS, "</call>")),),
    ),
}


def events_of(form: TurnFormat, *pieces: str, prompt: str = "") -> list[Event]:
    """The events of a turn that comes in these pieces."""
    parser = TurnParser(form, SCHEMAS, prompt)
    return [*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()]
