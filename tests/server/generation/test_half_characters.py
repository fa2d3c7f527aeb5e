"""Tokens that are only parts of characters: in texts that end inside one, and in
log-probabilities."""

import ast

import pytest

from tests.server.api.test_completions import complete

TEXT = "漢 😀 \ufffd größer 漢"


def whole_characters(tokenizer, count: int) -> str:
    """What the first tokens of TEXT say for certain."""
    offsets = tokenizer.raw.encode(TEXT, add_special_tokens=False).offsets
    return TEXT[: offsets[count][0]] if count < len(offsets) else TEXT


def as_bytes(spelled: str) -> bytes:
    """A token of completions' log-probabilities, as HELM and lm-eval read it."""
    if not spelled.startswith("bytes:"):
        return spelled.encode()
    return ast.literal_eval(f'b"{spelled.removeprefix("bytes:")}"')


def test_a_text_ends_with_its_last_whole_character(deployment, say, tokenizer):
    ids = say(TEXT, end=False)
    for count in range(1, len(ids) + 1):
        for streamed in (False, True):
            fields = {"prompt": "a", "max_tokens": count, "stream": streamed}
            (choice,) = deployment.choices("/v1/completions", **fields)
            said = choice["text"], choice["finish_reason"]
            assert said == (whole_characters(tokenizer, count), "length")


@pytest.mark.parametrize(
    ("said", "left", "fields", "expected"),
    [
        ("a\ufffd", 0, {}, ("a\ufffd", "stop")),
        ("a\ufffd", 0, {"stop": "\ufffd"}, ("a", "stop")),
        ("a漢", 1, {"stop": "\ufffd"}, ("a", "length")),
    ],
)
def test_a_replacement_character_is_the_models_own_or_half_a_character(
    deployment, say, said, left, fields, expected
):
    ids = say(said, end=not left)
    body = {"prompt": "a", "max_tokens": len(ids) + 1 - 2 * left} | fields
    (choice,) = complete(deployment, **body)["choices"]
    assert (choice["text"], choice["finish_reason"]) == expected


@pytest.mark.parametrize("prompt", ["naïve \ufffd", "🎉\ufffd\ufffd"])
def test_a_prompt_that_ends_in_a_replacement_character_is_not_repeated(deployment, say, prompt):
    say(" fox")
    (choice,) = complete(deployment, prompt=prompt)["choices"]
    assert choice["text"] == " fox"
    (choice,) = complete(deployment, prompt=prompt, echo=True, logprobs=0)["choices"]
    assert choice["text"] == f"{prompt} fox"
    offset = choice["logprobs"]["text_offset"][-2]
    assert choice["text"][offset:] == choice["logprobs"]["tokens"][-2]


def test_a_character_begun_by_the_prompt_is_told_once(deployment, tokenizer):
    ids = tokenizer.raw.encode("a 漢", add_special_tokens=False).ids
    deployment.engines["writer"].script.tokens = [ids[-1], 1]
    for echo, told in ((True, "a 漢"), (False, "漢")):
        (choice,) = complete(deployment, prompt=ids[:-1], echo=echo)["choices"]
        assert choice["text"] == told


def test_completions_spell_parts_of_characters_by_their_bytes(deployment, say):
    ids = say(TEXT, end=False)
    body = complete(deployment, prompt="a", logprobs=1, max_tokens=len(ids))
    logprobs = body["choices"][0]["logprobs"]
    assert r"bytes: \xf0\x9f" in logprobs["tokens"]
    assert b"".join(map(as_bytes, logprobs["tokens"])) == TEXT.encode()
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert set(top) == {"<s>", token}


def test_the_parts_of_a_character_begin_where_it_begins(deployment, say):
    text = "a 漢 größer"
    ids = say(text, end=False)
    fields = {"prompt": "The", "echo": True, "logprobs": 0, "max_tokens": len(ids)}
    (choice,) = complete(deployment, **fields)["choices"]
    logprobs = choice["logprobs"]
    offsets, tokens = logprobs["text_offset"][-len(ids) :], logprobs["tokens"][-len(ids) :]
    assert choice["text"] == f"The{text}"
    for token, offset in zip(tokens, offsets, strict=True):
        begin = as_bytes(token) if not token.startswith(r"bytes:\x") else b""
        assert choice["text"].encode()[len(choice["text"][:offset].encode()) :].startswith(begin)
    first = tokens.index(r"bytes:\xe6")
    assert [choice["text"][offset] for offset in offsets[first : first + 3]] == ["漢"] * 3


def test_a_prompts_parts_of_characters(deployment):
    (choice,) = complete(deployment, prompt=f"a{TEXT}", prompt_logprobs=0, max_tokens=1)["choices"]
    entries = [entry for scored in choice["prompt_logprobs"][1:] for entry in scored.values()]
    spelled = [entry["decoded_token"] for entry in entries]
    assert b"".join(map(as_bytes, spelled)) == f"a{TEXT}".encode()
    echoed = complete(deployment, prompt=f"a{TEXT}", echo=True, logprobs=0, max_tokens=0)
    assert echoed["choices"][0]["logprobs"]["tokens"][1:] == spelled
