"""crewai: a crew of one agent with one task, and an agent by itself."""

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from scripts import ANSWER, question


@pytest.fixture
def agent(daemon, get_weather, monkeypatch, tmp_path):
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path))
    monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    llm = LLM(model=daemon.model, provider="openai", base_url=daemon.v1, api_key=daemon.key)
    return Agent(
        role="forecaster", goal="Say how warm it will be.", backstory="You read barometers.",
        llm=llm, tools=[tool(get_weather)],
    )  # fmt: skip


def test_agent(agent):
    assert agent.kickoff(question()).raw == ANSWER


def test_crew(agent):
    task = Task(description=question(), expected_output="One sentence.", agent=agent)
    assert Crew(agents=[agent], tasks=[task]).kickoff().raw == ANSWER
