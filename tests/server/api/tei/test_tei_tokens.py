"""`/tokenize` with TEI's body, and `/decode`."""

import pytest

TEXT = "naïve 漢 cafés"


def test_the_documented_example(tei_deployment, tokenizer):
    (tokens,) = tei_deployment.ask("/tokenize", inputs=TEXT)
    encoding = tokenizer.raw.encode(TEXT)
    assert [token["id"] for token in tokens] == encoding.ids
    assert [token["special"] for token in tokens] == [*map(bool, encoding.special_tokens_mask)]
    first, *others = tokens
    assert first == {"id": 0, "text": "<s>", "special": True, "start": None, "stop": None}
    for token in others:
        part = TEXT.encode()[token["start"] : token["stop"]]
        assert token["text"] == part.decode()
    assert others[-1]["stop"] == len(TEXT.encode())


def test_texts_without_special_tokens(tei_deployment, tokenizer):
    texts = ["red wine", "", "apples"]
    found = tei_deployment.ask("/tokenize", inputs=texts, add_special_tokens=False)
    ids = [encoding.ids for encoding in tokenizer.raw.encode_batch(texts, add_special_tokens=False)]
    assert [[token["id"] for token in tokens] for tokens in found] == ids


@pytest.mark.parametrize("own", [{"prompt": "a"}, {"prompt": "a", "inputs": None}])
def test_a_body_of_our_own_gets_our_own_answer(tei_deployment, own):
    body = tei_deployment.ask("/tokenize", **own, model="sorter")
    assert body["count"] == len(body["tokens"])


def test_a_body_of_both_kinds_is_refused_in_our_own_form(tei_deployment):
    response = tei_deployment.post("/tokenize", {"prompt": "a", "inputs": "a", "model": "sorter"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "inputs"


def test_ids_become_texts_again(tei_deployment, tokenizer):
    ids = tokenizer.raw.encode(TEXT).ids
    assert tei_deployment.ask("/decode", ids=ids) == [TEXT]
    lists = [ids, [], ids[1:]]
    assert tei_deployment.ask("/decode", ids=lists) == [TEXT, "", TEXT]
    whole = tei_deployment.ask("/decode", ids=lists, skip_special_tokens=False)
    assert whole == [f"<s>{TEXT}", "", TEXT]
