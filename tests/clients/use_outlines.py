"""outlines, as it asks a server of vLLM's: its constraints travel as `structured_outputs`."""

import json
from enum import Enum
from typing import Literal

import openai
import outlines
import pytest
from outlines.types import Regex
from pydantic import BaseModel, Field


class Size(Enum):
    small = "small"
    large = "large"


class Server(BaseModel, extra="forbid"):
    name: Literal["alpha", "beta"]
    size: Size
    port: int = Field(ge=1, le=65535)


@pytest.fixture(scope="module")
def model(daemon):
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.key, max_retries=0) as client:
        yield outlines.from_vllm(client, daemon.generator)


def test_one_of_several(model):
    assert model("How large is it?", Literal["Tiny!", "Huge!"]) in {"Tiny!", "Huge!"}


def test_a_regular_expression(model):
    said = model("Name a version.", Regex(r"v[0-9]\.[0-9]{2}"))
    assert len(said) == 5
    assert said[0] == "v"
    assert said[2] == "."


def test_a_pydantic_model(model):
    said = model("Describe a server.", Server, max_tokens=120, seed=1)
    Server.model_validate(json.loads(said))


def test_a_stream(model):
    pieces = list(model.stream("Yes or no?", Literal["Yes indeed", "No, never"]))
    assert "".join(pieces) in {"Yes indeed", "No, never"}
