"""openai, in the words of its readme."""

import asyncio

import openai
import pytest

MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What does the function return?"},
]


@pytest.fixture(scope="module")
def client(daemon):
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.key, max_retries=0) as client:
        yield client


def test_models(client, daemon):
    assert set(daemon[2:]) <= {model.id for model in client.models.list()}
    model = client.models.retrieve(daemon.embedder)
    assert (model.id, model.object) == (daemon.embedder, "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_completion(client, daemon):
    answer = client.completions.create(
        model=daemon.generator, prompt="The function returns", max_tokens=8, temperature=0
    )
    assert answer.choices[0].text
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details is not None


def test_completion_stream(client, daemon):
    asked = {"model": daemon.generator, "prompt": "The function returns", "max_tokens": 8}
    whole = client.completions.create(**asked, temperature=0)
    pieces = list(
        client.completions.create(
            **asked, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(choice.text for piece in pieces for choice in piece.choices)
    assert text == whole.choices[0].text
    assert pieces[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": pieces[-1].usage.prompt_tokens_details}
    )


def test_chat(client, daemon):
    answer = client.chat.completions.create(
        model=daemon.generator, messages=MESSAGES, max_completion_tokens=8, temperature=0,
        logprobs=True, top_logprobs=2,
    )  # fmt: skip
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in answer.choices[0].logprobs.content)


def test_chat_stream(client, daemon):
    asked = {"model": daemon.generator, "messages": MESSAGES, "max_completion_tokens": 8}
    whole = client.chat.completions.create(**asked, temperature=0)
    pieces = list(client.chat.completions.create(**asked, temperature=0, stream=True))
    assert pieces[0].choices[0].delta.role == "assistant"
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_chat_stream_helper(client, daemon):
    with client.chat.completions.stream(
        model=daemon.generator, messages=MESSAGES, extra_body={"choice": ["A string."]}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == "A string."


def test_chat_parsed(client, daemon):
    """Structured output, from a pydantic model as in the SDK's guide."""
    from typing import Literal

    from pydantic import BaseModel

    class Server(BaseModel):
        mode: Literal["fast", "safe"]
        backup: bool

    answer = client.chat.completions.parse(
        model=daemon.generator, messages=MESSAGES, response_format=Server, max_completion_tokens=60
    )
    assert isinstance(answer.choices[0].message.parsed, Server)


def test_async_client(daemon):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.key) as client:
            stream = await client.chat.completions.create(
                model=daemon.generator, messages=MESSAGES, max_completion_tokens=4, stream=True
            )
            return [piece async for piece in stream]

    assert asyncio.run(ask())[-1].choices[0].finish_reason in ("length", "stop")


def test_embeddings(client, daemon, documents):
    plain = client.embeddings.create(
        model=daemon.embedder, input=documents, encoding_format="float"
    )
    # Left to itself, the SDK asks for base64 and decodes it.
    decoded = client.embeddings.create(model=daemon.embedder, input=documents)
    assert len(plain.data) == len(documents)
    for one, other in zip(plain.data, decoded.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > len(documents)


QUESTIONS = [
    {"type": "predicate", "name": "refund", "instructions": "The customer asks for a refund."},
    {
        "type": "choice",
        "instructions": [{"type": "input_text", "text": "Which team?"}],
        "choices": [{"value": True}, {"value": "true", "description": "as text"}],
    },
    {
        "type": "score",
        "instructions": "How angry is the customer?",
        "levels": [{"label": "calm"}, {"label": "cross"}, {"label": "furious"}],
    },
]
TALK = [
    {"role": "developer", "content": "These are letters of customers."},
    {"role": "user", "content": [{"type": "input_json", "data": {"parcel": 7, "late": True}}]},
    {"role": "assistant", "content": "I look it up.", "phase": "commentary"},
    {"type": "function_call", "call_id": "c1", "name": "parcel", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "late"},
]


def check_decision(decision, daemon):
    refund, team, anger = decision.answers
    assert (refund.type, team.type, anger.type) == ("predicate", "choice", "score")
    assert (refund.name, team.name, anger.name) == ("refund", None, None)
    assert 0 < refund.probability < 1
    assert [each.value for each in team.probabilities] == [True, "true"]
    assert type(team.choice) in (bool, str)
    assert [(each.value, each.label) for each in anger.probabilities] == [
        (0, "calm"), (1, "cross"), (2, "furious"),
    ]  # fmt: skip
    for answer in (team, anger):
        assert sum(each.probability for each in answer.probabilities) == pytest.approx(1)
        assert 0 < answer.confidence < 1
    assert anger.score == pytest.approx(sum(e.value * e.probability for e in anger.probabilities))
    usage = decision.usage
    assert (decision.model, usage.output_tokens) == (daemon.generator, len(QUESTIONS))
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


if hasattr(openai.OpenAI, "decisions"):  # since 3.57

    @pytest.mark.parametrize("given", ["The parcel came late.", "", TALK])
    def test_decisions(client, daemon, given):
        decision = client.decisions.create(
            model=daemon.generator, input=given, questions=QUESTIONS, prompt_cache_key="letters"
        )
        check_decision(decision, daemon)

    def test_decisions_async(daemon):
        async def ask():
            url = f"{daemon.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=daemon.key) as client:
                return await client.decisions.create(
                    model=daemon.generator,
                    input=TALK,
                    questions=QUESTIONS,
                    prompt_cache_options={"mode": "implicit", "ttl": "30m"},
                    safety_identifier="somebody",
                )

        check_decision(asyncio.run(ask()), daemon)

    def test_errors_of_decisions_name_the_field(client, daemon):
        twice = QUESTIONS[1] | {"choices": [{"value": "a"}, {"value": "b"}, {"value": "a"}]}
        with pytest.raises(openai.BadRequestError) as caught:
            client.decisions.create(
                model=daemon.generator, input="a", questions=[QUESTIONS[0]] * 7 + [twice]
            )
        assert caught.value.param == "questions[7].choices[2].value"

    def candidates_of(done, wrapped):
        """What has not been done, and the end."""
        return [
            {"id": name, "description": f"Does {name}.", "execute": wrapped(done, name)}
            for name in ("reading", "writing")
            if name not in done
        ] + [{"id": "done", "description": "The task is complete.", "done": True}]

    def test_decisions_tool_runner(client, daemon):
        from openai.lib.decisions_tool_runner import DecisionsToolRunner

        done = []
        runner = DecisionsToolRunner(
            observe=lambda: [{"type": "input_text", "text": f"Done: {done}"}],
            candidates=lambda _: candidates_of(done, lambda done, name: lambda: done.append(name)),
        )
        result = runner.run(client, {"model": daemon.generator, "input": "Read, then write."})
        check_run(result, done)

    def test_decisions_tool_runner_async(daemon):
        from openai.lib.decisions_tool_runner import AsyncDecisionsToolRunner

        done = []

        def executing(done, name):
            async def execute():
                done.append(name)

            return execute

        async def observe():
            return f"Done: {done}"

        async def candidates(_):
            return candidates_of(done, executing)

        async def run():
            url = f"{daemon.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=daemon.key) as client:
                params = {"model": daemon.generator, "input": "Read, then write."}
                runner = AsyncDecisionsToolRunner(observe=observe, candidates=candidates)
                return await runner.run(client, params)

        check_run(asyncio.run(run()), done)

    def check_run(result, done):
        assert result["status"] == "unverified"
        assert result["attempted_candidate_ids"] == result["completed_candidate_ids"] == done
        chosen = [decision.answers[0].choice for decision in result["decisions"]]
        assert chosen[: len(done)] == done
        assert len(chosen) >= 1


def test_errors_name_the_field(client, daemon):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=daemon.generator, messages=MESSAGES, temperature=-1)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_request")
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=daemon.embedder, input=["fine", "word " * 300])
    assert (caught.value.param, caught.value.code) == ("input[1]", "context_length_exceeded")
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="nobody", prompt="x")
    assert caught.value.code == "model_not_found"


def test_a_wrong_key(daemon):
    with (
        openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


@pytest.fixture
def environment(daemon, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", f"{daemon.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", daemon.key)


@pytest.mark.usefixtures("environment")
def test_quick_start():
    """The readme's and the guides' programs as they are: the environment says where."""
    client = openai.OpenAI()
    completion = client.chat.completions.create(
        model="gpt-4o",
        messages=[
            {"role": "developer", "content": "Talk like a pirate."},
            {"role": "user", "content": "How do I check if a Python object is an instance?"},
        ],
    )
    assert completion.choices[0].finish_reason in ("stop", "length")
    stream = client.chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": "Say this is a test"}], stream=True
    )
    assert list(stream)[-1].choices[0].finish_reason in ("stop", "length")
    embedded = client.embeddings.create(
        input="Your text string goes here", model="text-embedding-3-small"
    )
    assert len(embedded.data[0].embedding) == 384
    written = client.completions.create(
        model="gpt-3.5-turbo-instruct", prompt="Write a tagline for an ice cream shop."
    )
    assert written.choices[0].finish_reason in ("stop", "length")
