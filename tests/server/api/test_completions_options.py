"""What a completion may ask for beyond its text: choices, ends, prompts, scores, deadlines."""

import time

import httpx
import pytest

from tests.patience import wait_until
from tests.server.api.test_completions import complete, stream
from tests.server.chat_client import HELLO

FOX = "The quick brown fox jumps over the lazy dog."


def texts(body: dict) -> list[str]:
    return [choice["text"] for choice in body["choices"]]


def reasons(body: dict) -> list[str]:
    return [choice["finish_reason"] for choice in body["choices"]]


@pytest.mark.parametrize("logprobs", [None, 1])
def test_best_of_returns_the_likeliest(deployment, say, logprobs):
    ids = say(FOX)
    deployment.engines["writer"].script.chances = [-3.0, -1.0, -2.0]
    body = complete(
        deployment, prompt=["a", "b"], n=2, best_of=3, logprobs=logprobs, max_tokens=100
    )
    job = deployment.job("writer")
    assert (job.n, job.params.logprobs) == (3, logprobs or 0)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    told = [choice["logprobs"] for choice in body["choices"]]
    first = [own and own["token_logprobs"][0] for own in told]
    assert first == ([None] * 4 if logprobs is None else [-1.0, -2.0] * 2)
    assert body["usage"]["completion_tokens"] == 6 * (len(ids) + 1)


def test_best_of_as_many_as_are_told_changes_nothing(deployment):
    complete(deployment, prompt="a", n=2, best_of=2)
    job = deployment.job("writer")
    assert (job.n, job.params.logprobs) == (2, None)
    assert stream(deployment, prompt="a", best_of=1)


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_token_is_told_like_a_stop_string(deployment, say, tokenizer, included):
    ids = say(FOX)
    fields = {"stop_token_ids": [ids[4]], "include_stop_str_in_output": included}
    body = complete(deployment, prompt="a", max_tokens=100, return_token_ids=True, **fields)
    assert texts(body) == [tokenizer.decode(ids[: 4 + included])]
    assert reasons(body) == ["stop"]
    assert body["choices"][0]["token_ids"] == ids[:5]
    assert body["usage"]["completion_tokens"] == 5


def test_a_stop_token_ends_what_ignores_the_models_end(deployment, say, tokenizer):
    ids = say(FOX)
    fields = {"ignore_eos": True, "stop_token_ids": [ids[-1]], "max_tokens": 400}
    body = complete(deployment, prompt="a", **fields)
    assert texts(body) == [tokenizer.decode(ids[:-1])]


def test_no_stop_string_ends_a_text_before_its_least_length(deployment, say):
    ids = say("abab abab abab abab", end=False)
    plain = complete(deployment, prompt="a", stop="abab", max_tokens=len(ids))
    assert texts(plain) == [""]
    for least in range(1, len(ids) + 1):
        body = complete(deployment, prompt="a", stop="abab", max_tokens=len(ids), min_tokens=least)
        assert body["usage"]["completion_tokens"] >= least
        assert "abab abab abab abab".startswith(texts(body)[0])


def test_special_tokens_may_be_included(deployment, tokenizer):
    ids = tokenizer.raw.encode("so", add_special_tokens=False).ids
    deployment.engines["writer"].script.tokens = [*ids, 0, *ids]
    size = 2 * len(ids) + 1
    assert texts(complete(deployment, prompt="a", max_tokens=size)) == ["soso"]
    body = complete(deployment, prompt="a", max_tokens=size, skip_special_tokens=False)
    assert texts(body) == ["so<s>so"]
    body = complete(deployment, prompt="a", max_tokens=size, skip_special_tokens=False, echo=True)
    assert texts(body) == ["<s>aso<s>so"]


def test_a_prompt_without_special_tokens(deployment, tokenizer):
    body = complete(deployment, prompt="Hello", add_special_tokens=False, return_token_ids=True)
    plain = tokenizer.raw.encode("Hello", add_special_tokens=False).ids
    assert body["choices"][0]["prompt_token_ids"] == plain
    assert body["usage"]["prompt_tokens"] == len(plain)


@pytest.mark.parametrize("form", ["text", "ids"])
def test_a_truncated_prompt_is_what_counts_and_echoes(deployment, say, tokenizer, form):
    say(" then")
    ids = tokenizer.raw.encode(FOX, add_special_tokens=False).ids
    prompt = FOX if form == "text" else ids
    fields = {"truncate_prompt_tokens": 3, "echo": True, "return_token_ids": True}
    body = complete(deployment, prompt=prompt, **fields)
    assert body["choices"][0]["prompt_token_ids"] == ids[-3:]
    assert body["usage"]["prompt_tokens"] == 3
    assert texts(body) == [tokenizer.decode(ids[-3:]) + " then"]


def test_truncating_to_what_fits(deployment):
    complete(deployment, prompt="a", truncate_prompt_tokens=-1, max_tokens=48)
    complete(deployment, prompt="a", truncate_prompt_tokens=-1, max_tokens=2048)
    first, second = deployment.engines["writer"].received
    assert first.tokenization.truncate_to == 2000
    assert second.tokenization.truncate_to == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_token_ids_are_all_that_was_generated(deployment, say, tokenizer, streamed):
    ids = say("größer, naïve 漢字")
    prompt = tokenizer.raw.encode("Hello").ids
    fields = {"prompt": "Hello", "return_token_ids": True, "n": 2, "max_tokens": 100}
    for choice in deployment.choices("/v1/completions", **fields, stream=streamed):
        assert (choice["prompt_token_ids"], choice["token_ids"]) == (prompt, [*ids, 1])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_nobody_asked_for_is_null_and_absent_in_a_stream(chats, path):
    asked = {"model": "writer", "max_tokens": 2}
    asked |= {"messages": HELLO} if "chat" in path else {"prompt": "Hello"}
    body = chats.ask(path, **asked)
    told = body["choices"][0] | body
    names = ("token_ids", "prompt_token_ids", "prompt_logprobs")
    assert [told[name] for name in names] == [None] * 3
    stream = chats.post(path, asked | {"stream": True}).text
    assert not [name for name in names if name in stream]


def test_the_log_probabilities_of_a_prompt(deployment, tokenizer):
    ids = tokenizer.raw.encode("The quick").ids
    body = complete(deployment, prompt=["The quick", "a"], prompt_logprobs=2, max_tokens=1)
    first, *entries = body["choices"][0]["prompt_logprobs"]
    assert first is None
    assert len(entries) == len(ids) - 1
    for token, entry in zip(ids[1:], entries, strict=True):
        assert set(entry) == {str(token), "0", "1"}
        assert entry["0"] == {"logprob": -1.0, "rank": 1, "decoded_token": "<s>"}
        assert (entry[str(token)]["logprob"], entry[str(token)]["rank"]) == (-0.5, 7)
    assert body["choices"][0]["logprobs"] is None
    assert len(body["choices"][1]["prompt_logprobs"]) == len(tokenizer.raw.encode("a").ids)


def test_a_prompts_own_and_the_alternatives_beside_the_text_differ_in_number(deployment):
    fields = {"prompt": "The quick", "echo": True, "logprobs": 1, "max_tokens": 1}
    (choice,) = complete(deployment, **fields, prompt_logprobs=4)["choices"]
    job = deployment.job("writer")
    assert (job.params.logprobs, job.params.prompt_logprobs) == (1, 4)
    assert len(choice["prompt_logprobs"][1]) == 5
    assert len(choice["logprobs"]["top_logprobs"][1]) == 2
    (choice,) = complete(deployment, **fields | {"echo": False}, prompt_logprobs=0)["choices"]
    assert len(choice["logprobs"]["tokens"]) == 1
    assert len(choice["prompt_logprobs"][1]) == 1


@pytest.mark.parametrize("echo", [False, True])
def test_no_token_wanted_scores_a_prompt(deployment, say, echo):
    fields = {"prompt": "The quick", "echo": echo, "logprobs": 1, "max_tokens": 0}
    body = complete(deployment, **fields)
    assert texts(body) == ["The quick" if echo else ""]
    assert reasons(body) == ["length"]
    assert body["usage"]["completion_tokens"] == 0
    logprobs = body["choices"][0]["logprobs"]["token_logprobs"]
    assert len(logprobs) == (body["usage"]["prompt_tokens"] if echo else 0)
    chunks = stream(deployment, **fields)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == ["length"]
    (job, _) = deployment.engines["writer"].received
    assert job.params.max_tokens == 0


def test_cached_tokens_are_each_prompts_once(deployment):
    deployment.engines["writer"].script.cached = 3
    body = complete(deployment, prompt=["Hello", "Hello"], n=4)
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_deadline_in_the_middle_keeps_the_text_so_far(deployment, say, streamed):
    say(FOX)
    engine = deployment.engines["writer"]
    engine.script.step_seconds = 0.1
    started = time.monotonic()
    fields = {"prompt": "a", "n": 2, "max_tokens": 1000, "timeout": 0.55, "ignore_eos": True}
    choices = deployment.choices("/v1/completions", **fields, stream=streamed)
    assert 0.5 < time.monotonic() - started < 50
    assert [choice["finish_reason"] for choice in choices] == ["timeout"] * 2
    assert all(choice["text"] and FOX.startswith(choice["text"]) for choice in choices)
    wait_until(lambda: not engine.running)
    assert engine.aborted == [engine.received[0].id]


@pytest.mark.parametrize("state", ["held", "deaf"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_deadline_before_anything_has_begun(deployment, state, streamed):
    """Accepted and waiting, or not even accepted."""
    engine = deployment.engines["writer"]
    setattr(engine.script, state, True)
    fields = {"prompt": ["a", "b"], "n": 2, "timeout": 0.2, "return_token_ids": True, "logprobs": 1}
    choices = deployment.choices("/v1/completions", **fields, stream=streamed)
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert {choice["finish_reason"] for choice in choices} == {"timeout"}
    assert all(choice["text"] == "" and choice["token_ids"] == [] for choice in choices)
    wait_until(lambda: engine.aborted == [engine.received[0].id])


def test_echo_before_anything_has_begun(deployment):
    deployment.engines["writer"].script.deaf = True
    fields = {"echo": True, "logprobs": 1, "prompt_logprobs": 1, "timeout": 0.1}
    body = complete(deployment, prompt="a", **fields)
    assert texts(body) == [""]
    assert body["usage"]["prompt_tokens"] == 0
    assert body["choices"][0]["logprobs"]["tokens"] == []


def test_a_deadline_that_is_not_reached_changes_nothing(deployment, say):
    say(FOX)
    body = complete(deployment, prompt="a", max_tokens=100, timeout=1e6)
    assert (texts(body), reasons(body)) == ([FOX], ["stop"])
    assert deployment.engines["writer"].aborted == []


def test_deadlines_leave_nothing_in_the_deployment(deployment):
    deployment.engines["writer"].script.held = True
    for _ in range(5):
        complete(deployment, prompt=["a"] * 2000, timeout=0.05)
    wait_until(lambda: not deployment.engines["writer"].running)
    deployment.engines["writer"].script.held = False
    assert httpx.get(f"{deployment.api.url}/health").status_code == 200
    assert reasons(complete(deployment, prompt=["a"] * 2000)) == ["length"] * 2000


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_the_side_on_which_a_prompt_is_cut(deployment, side):
    complete(deployment, prompt=FOX, truncate_prompt_tokens=3, truncation_side=side, max_tokens=1)
    job = deployment.job("writer")
    assert (job.tokenization.truncate_to, job.tokenization.truncation_side) == (3, side or "left")


def test_max_tokens_under_its_newer_name(deployment):
    for fields in ({"max_completion_tokens": 2}, {"max_completion_tokens": 2, "max_tokens": 2}):
        body = complete(deployment, prompt="a", **fields, ignore_eos=True)
        assert body["usage"]["completion_tokens"] == 2


def test_tokens_spelled_by_their_ids(deployment, say, tokenizer):
    ids = say("naïve cafés")
    fields = {"prompt": "a", "max_tokens": 50, "logprobs": 2, "echo": True}
    (choice,) = complete(deployment, **fields, return_tokens_as_token_ids=True)["choices"]
    logprobs = choice["logprobs"]
    prompt = tokenizer.raw.encode("a").ids
    assert logprobs["tokens"] == [f"token_id:{id_}" for id_ in [*prompt, *ids, 1]]
    assert all(key.startswith("token_id:") for top in logprobs["top_logprobs"][1:] for key in top)
    (plain,) = complete(deployment, **fields)["choices"]
    assert plain["text"] == choice["text"]
    assert plain["logprobs"]["text_offset"] == logprobs["text_offset"]
    assert plain["logprobs"]["token_logprobs"] == logprobs["token_logprobs"]


def test_which_tokens_may_be_sampled(deployment, tokenizer):
    words = ["red wine", " red wine", "漢", "red wine"]
    complete(deployment, prompt="a", allowed_token_ids=[9, 5, 9], bad_words=words)
    job = deployment.job("writer")
    assert job.params.allowed_token_ids == {5, 9}
    spelled = ("red wine", "漢", " red wine", " 漢")
    encodings = tokenizer.raw.encode_batch(spelled, add_special_tokens=False)
    assert job.params.bad_words == tuple(tuple(encoding.ids) for encoding in encodings)
