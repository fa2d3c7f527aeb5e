"""smolagents: a ToolCallingAgent, which answers by a call of its own."""

import pytest
from scripts import FORECAST, question
from smolagents import OpenAIModel, Tool, ToolCallingAgent


class GetWeather(Tool):
    name = "get_weather"
    description = "Forecast the weather."
    inputs = {  # noqa: RUF012 -- as its documentation has it
        "city": {"type": "string", "description": "The name of a city."},
        "days": {"type": "integer", "description": "For how many days."},
    }
    output_type = "string"
    called_by = None

    def forward(self, city: str, days: int) -> str:
        return self.called_by(city, days)


@pytest.mark.parametrize("streamed", [False, True])
def test_agent(daemon, get_weather, streamed):
    tool = GetWeather()
    tool.called_by = get_weather
    model = OpenAIModel(daemon.model, api_base=daemon.v1, api_key=daemon.key)
    agent = ToolCallingAgent(tools=[tool], model=model, stream_outputs=streamed, max_steps=2)
    assert agent.run(question("answer-by-a-call")) == FORECAST
