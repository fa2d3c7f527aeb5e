"""The daemon that the frameworks' loops run against, and their tool. tests/e2e/users/test_agents.py
starts it."""

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from scripts import ARGUMENTS, FORECAST

# Else litellm, which dspy uses too, tries for seconds to fetch its list of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

Weather = Callable[[str, int], str]


class Daemon(NamedTuple):
    """The daemon's address and key, and the model's names: its own, and one of OpenAI's, by which
    a client looks up what the model is able to do."""

    url: str
    key: str
    model: str = "scripted"
    known_model: str = "gpt-4o"

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


@pytest.fixture(scope="session")
def daemon() -> Daemon:
    return Daemon(os.environ["DAEMON_URL"], os.environ["DAEMON_KEY"])


@pytest.fixture
def get_weather() -> Iterator[Weather]:
    """A tool, which must have been called once, with the script's arguments."""
    called = []

    def get_weather(city: str, days: int) -> str:
        """Forecast the weather.

        Args:
            city: The name of a city.
            days: For how many days.
        """
        called.append({"city": city, "days": days})
        return FORECAST

    yield get_weather
    assert called == [ARGUMENTS]


@pytest.fixture(scope="session")
def tools() -> list[dict]:
    """The same tool as requests describe it."""
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    described = {"name": "get_weather", "description": "Forecast.", "parameters": parameters}
    return [{"type": "function", "function": described}]
