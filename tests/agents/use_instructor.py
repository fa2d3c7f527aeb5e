"""instructor: an answer that its model refuses is asked for again, by a tool and by a schema."""

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


@pytest.mark.parametrize(
    ("mode", "script"),
    [(instructor.Mode.TOOLS, "corrected-call"), (instructor.Mode.JSON_SCHEMA, "corrected-text")],
)
def test_a_corrected_answer(daemon, mode, script):
    bare = openai.OpenAI(base_url=daemon.v1, api_key=daemon.key, max_retries=0)
    client = instructor.from_openai(bare, mode=mode)
    messages = [{"role": "user", "content": question(script)}]
    answer = client.chat.completions.create(
        model=daemon.model, messages=messages, response_model=Weather, max_retries=1
    )
    assert answer.model_dump() == ARGUMENTS
