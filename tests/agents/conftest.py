"""The daemon that the frameworks' loops run against, and their tool. tests/e2e/users/test_agents.py
starts it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from scripts import ARGUMENTS, FORECAST

Weather = Callable[[str, int], str]


class Daemon(NamedTuple):
    """The address under which chat is served, the key, and the model's name."""

    url: str
    key: str
    model: str = "scripted"

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--url", required=True)
    parser.addoption("--key", required=True)


@pytest.fixture(scope="session")
def daemon(pytestconfig: pytest.Config) -> Daemon:
    return Daemon(pytestconfig.getoption("url"), pytestconfig.getoption("key"))


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
