"""The run that reads back rendered turns tells what it reads from what it cannot."""

import pytest

from benchmarks.templates.turn_cases import CASES
from benchmarks.templates.turns import outcome_of

TURN = """\
{% for m in messages %}{% if m.role == 'assistant' %}<|bot|>{{ m.content or '' }}
{%- for t in m.tool_calls or [] %}CALL{% endfor %}<|end|>
{% else %}<|user|>{{ m.content }}<|end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"""
HERMES = (
    '<tool_call>{"name": "{{ t.function.name }}", '
    '"arguments": {{ t.function.arguments | tojson }}}</tool_call>'
)
RAW = (
    "<call={{ t.function.name }}>{% for k, v in t.function.arguments.items() %}"
    "<b={{ k }}>{{ v if v is string else v | tojson }}</b>{% endfor %}</call>"
)


@pytest.mark.parametrize(("call", "closers"), [(HERMES, 0), (RAW, 1)])
def test_all_cases_pass_or_are_left_out(call: str, closers: int) -> None:
    tested = outcome_of("x", TURN.replace("CALL", call), None)
    assert (tested.source, tested.failed) == ("learnt", [])
    assert (tested.passed, tested.closers) == (len(CASES) - closers, closers)


def test_a_template_that_changes_values_fails() -> None:
    changed = HERMES.replace("arguments | tojson", "arguments | tojson | replace('Rome', 'Oslo')")
    tested = outcome_of("x", TURN.replace("CALL", changed), None)
    assert any(fault.startswith("one: read") for fault in tested.failed)


def test_a_template_without_a_format_is_refused() -> None:
    tested = outcome_of("x", TURN.replace("CALL", "{{ t.function.name }}"), None)
    assert tested.source.startswith("refused: ")
