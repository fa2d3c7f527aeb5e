"""What a chat tells of its tokens, and the echo of a message that it continues."""

from collections.abc import Iterator

import pytest

from tests.server.chat_client import HELLO, chat, chunks_of, error, say_little
from tests.server.chat_templates import LLAMA3, chat_deployment
from tests.server.conftest import Deployment

BEGUN = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Well"}]}]


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, {"writer": LLAMA3}) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


def prompt_ids(deployment, tokenizer) -> list[int]:
    job = deployment.engines["writer"].received[0]
    return tokenizer.raw.encode(job.texts[0], add_special_tokens=False).ids


def test_the_ids_of_an_answer_and_its_prompt(deployment, say, tokenizer):
    ids = say("naïve cafés")
    body = chat(deployment, return_token_ids=True, n=2)
    assert [choice["token_ids"] for choice in body["choices"]] == [[*ids, 1]] * 2
    assert body["prompt_token_ids"] == prompt_ids(deployment, tokenizer)
    plain = chat(deployment, return_token_ids=False)
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]


def test_the_ids_in_a_stream(deployment, say, tokenizer):
    ids = say("naïve cafés, a b c")
    deployment.engines["writer"].script.step_seconds = 0.005
    first, *others = chunks_of(deployment, return_token_ids=True)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert first["prompt_token_ids"] == prompt_ids(deployment, tokenizer)
    assert not [chunk for chunk in others if "prompt_token_ids" in chunk]
    told = [chunk["choices"][0].get("token_ids", []) for chunk in [first, *others]]
    assert [token for tokens in told for token in tokens] == [*ids, 1]
    for chunk in chunks_of(deployment):
        assert "prompt_token_ids" not in chunk
        assert "token_ids" not in chunk["choices"][0]


@pytest.mark.parametrize("width", [0, 2])
def test_the_scores_of_a_prompt(deployment, tokenizer, width):
    body = chat(deployment, prompt_logprobs=width, n=2)
    (job,) = deployment.engines["writer"].received
    assert (job.params.prompt_logprobs, job.params.logprobs) == (width, None)
    ids = prompt_ids(deployment, tokenizer)
    first, *entries = body["prompt_logprobs"]
    assert first is None
    for id_, entry in zip(ids[1:], entries, strict=True):
        assert entry[str(id_)]["logprob"] == -0.5
        assert len(entry) <= width + 1
    assert "prompt_logprobs" not in chat(deployment)


def test_a_prompt_is_not_scored_in_a_stream(deployment):
    assert error(deployment, prompt_logprobs=0, stream=True)["param"] == "prompt_logprobs"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("messages", "echoed"),
    [(BEGUN, "Well"), (HELLO, ""), ([*BEGUN, *HELLO], ""), ([{"role": "assistant"}], "")],
)
def test_the_message_before_is_echoed_if_it_is_an_assistants(
    deployment, say, streamed, messages, echoed
):
    say(", so")
    fields = {"messages": messages, "echo": True, "n": 2}
    if not streamed:
        texts = [choice["message"]["content"] for choice in chat(deployment, **fields)["choices"]]
    else:
        texts = ["", ""]
        for chunk in chunks_of(deployment, **fields):
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [f"{echoed}, so"] * 2
