"""instructor: an answer that its model refuses is asked for again, by a tool and by a schema. One
that it accepts comes by the Responses API."""

import instructor
import openai
import pytest
from pydantic import BaseModel, field_validator
from scripts import ARGUMENTS, question


class Weather(BaseModel):
    city: str
    days: int

    @field_validator("city")
    @classmethod
    def lies_on_a_lake(cls, city: str) -> str:
        assert city != "Bern", "no city on a lake"
        return city


def client_of(daemon, mode):
    bare = openai.OpenAI(base_url=daemon.v1, api_key=daemon.key, max_retries=0)
    return instructor.from_openai(bare, mode=mode)


@pytest.mark.parametrize(
    ("mode", "script"),
    [(instructor.Mode.TOOLS, "corrected-call"), (instructor.Mode.JSON_SCHEMA, "corrected-text")],
)
def test_a_corrected_answer(daemon, mode, script):
    messages = [{"role": "user", "content": question(script)}]
    answer = client_of(daemon, mode).chat.completions.create(
        model=daemon.model, messages=messages, response_model=Weather, max_retries=1
    )
    assert answer.model_dump() == ARGUMENTS


def test_an_answer_of_responses(daemon):
    """When it asks again, this mode leaves out the turn, by whose number a script goes on."""
    answer = client_of(daemon, instructor.Mode.RESPONSES_TOOLS).responses.create(
        model=daemon.model, input=question("typed-call"), response_model=Weather, max_retries=0
    )
    assert answer.model_dump() == ARGUMENTS
