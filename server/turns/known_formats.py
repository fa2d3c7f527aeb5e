"""Formats of turns that templates do not show: they leave out calls, or write them like text."""

from itertools import product

from msgspec.structs import replace

from engine_core.turn_format import (
    JSON_TYPES,
    CallFormat,
    Members,
    Reasoning,
    Slot,
    TurnFormat,
    Value,
)

_NAME, _ARGUMENTS = Slot("name"), Slot("arguments")
_THINK = Reasoning(open="<think>", close="</think>")

# The header names the tool before its channel or behind it. The first of a turn may be begun.
_HARMONY_HEADERS = (
    *product(
        ("<|channel|>commentary to=functions.",),
        ("<|constrain|>json<|message|>", "json<|message|>", "<|message|>"),
    ),
    *product(
        ("<|start|>assistant to=functions.", "to=functions."),
        ("<|channel|>commentary json<|message|>",
         "<|channel|>commentary <|constrain|>json<|message|>",
         "<|channel|>commentary<|message|>"),
    ),
)  # fmt: skip

HARMONY = TurnFormat(
    reasoning=Reasoning(open="<|channel|>analysis<|message|>", close="<|end|>"),
    text_markers=(
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|start|>assistant",
        "<|end|>",
        "<|return|>",
    ),
    calls=tuple(
        CallFormat(call=(before, _NAME, behind, _ARGUMENTS, "<|call|>"), many=False)
        for before, behind in _HARMONY_HEADERS
    ),
)
HERMES = TurnFormat(
    reasoning=_THINK,
    calls=(
        CallFormat(
            call=(
                '<tool_call>\n{"name": "',
                _NAME,
                '", "arguments": ',
                _ARGUMENTS,
                "}\n</tool_call>",
            )
        ),
    ),
)
_GRANITE = TurnFormat(
    reasoning=_THINK,
    calls=(
        CallFormat(
            open="<|tool_call|>[",
            call=('{"name": "', _NAME, '", "arguments": ', _ARGUMENTS, "}"),
            between=", ",
            close="]",
        ),
    ),
)
_LFM2 = TurnFormat(
    reasoning=_THINK,
    calls=(
        CallFormat(
            open="<|tool_call_start|>[",
            call=(_NAME, "(", _ARGUMENTS, ")"),
            between=", ",
            close="]<|tool_call_end|>",
            members=Members(
                between=", ", values=(Value(types=JSON_TYPES, open="=", dialect="python"),)
            ),
        ),
    ),
)

# By words of a template's source. The first that has all its words serves.
_BY_WORDS = (
    (("<|channel|>", "<|message|>", "<|call|>"), HARMONY),
    (("List of tools: ", "<|im_start|>"), _LFM2),
    (("<|tool_call|>", "JSON list"), _GRANITE),
    (("<tool_call>\\n{", "arguments"), HERMES),
)


def known_format(source: str) -> TurnFormat | None:
    """The format of the turns of a template, by its source. One that knows no tools gets a common
    form, which a prompt has to describe to the model."""
    known = (form for words, form in _BY_WORDS if all(word in source for word in words))
    found = next(known, None if knows_tools(source) else HERMES)
    if found is None or found.reasoning is None or found.reasoning.close in source:
        return found
    # Else the text of a model without reasoning need not begin by the format that is asked of it.
    return replace(found, reasoning=None)


def knows_tools(source: str) -> bool:
    """True if a template of this source may write tools and their calls."""
    return "tool" in source
