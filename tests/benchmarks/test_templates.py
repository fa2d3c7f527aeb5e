"""The run that holds chat templates to transformers tells what is equal from what is not."""

from collections import Counter

from benchmarks.templates.__main__ import outcomes_of
from benchmarks.templates.conversations import CONVERSATIONS
from tests.server.chat_templates import CHATML, MISTRAL

PARTS_ONLY = """\
{% for m in messages %}{% if m.role == 'user' %}
{% for part in m.content %}{{ part.text | upper }}{% endfor %}{% endif %}{% endfor %}"""


async def results(source: str) -> dict[str, str]:
    outcomes = {each.conversation: each for each in await outcomes_of(source)}
    assert outcomes.keys() == CONVERSATIONS.keys()
    return {name: each.result for name, each in outcomes.items()}


async def test_outcomes_of_a_template_that_writes_every_role() -> None:
    found = await results(CHATML)
    others = {
        "a name", "a result without a call", "reasoning", "reasoning at last",
        "reasoning before a call",
    }  # fmt: skip
    assert {name for name, result in found.items() if result != "equal"} == others
    assert {found[name] for name in others} == {"refused by name"}


async def test_outcomes_of_a_template_that_refuses() -> None:
    found = await results(MISTRAL)
    assert found["system"] == found["two turns"] == "equal"
    assert found["an answer first"] == found["a system later"] == "refused by the template"


async def test_what_is_lost_of_messages_as_they_are_written() -> None:
    outcomes = await outcomes_of(PARTS_ONLY)
    assert outcomes[0] == ("a string", "equal", "", True)
    counts = Counter(each.result for each in outcomes)
    assert counts.keys() == {"equal", "refused by name"}
