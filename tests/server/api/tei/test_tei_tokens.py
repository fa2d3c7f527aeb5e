"""`/tokenize` with TEI's body, and `/decode`."""

import pytest

from tests.server.api.tei.tei_client import answer, failure
from tests.server.support import server_config

TEXT = "naïve 漢 cafés"


def test_the_documented_example(tei_deployment, tokenizer):
    (tokens,) = answer(tei_deployment, "/tokenize", inputs=TEXT)
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
    found = answer(tei_deployment, "/tokenize", inputs=texts, add_special_tokens=False)
    ids = [encoding.ids for encoding in tokenizer.raw.encode_batch(texts, add_special_tokens=False)]
    assert [[token["id"] for token in tokens] for tokens in found] == ids


@pytest.mark.parametrize("own", [{"prompt": "a"}, {"prompt": "a", "inputs": None}])
def test_a_body_of_our_own_gets_our_own_answer(tei_deployment, own):
    body = answer(tei_deployment, "/tokenize", **own, model="sorter")
    assert body["count"] == len(body["tokens"])


def test_a_body_of_both_kinds_is_refused_in_our_own_form(tei_deployment):
    response = tei_deployment.post("/tokenize", {"prompt": "a", "inputs": "a", "model": "sorter"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "inputs"


def test_ids_become_texts_again(tei_deployment, tokenizer):
    ids = tokenizer.raw.encode(TEXT).ids
    assert answer(tei_deployment, "/decode", ids=ids) == [TEXT]
    lists = [ids, [], ids[1:]]
    assert answer(tei_deployment, "/decode", ids=lists) == [TEXT, "", TEXT]
    whole = answer(tei_deployment, "/decode", ids=lists, skip_special_tokens=False)
    assert whole == [f"<s>{TEXT}", "", TEXT]


def test_a_model_of_any_kind_has_a_tokenizer(builder, tei_deployment):
    generator = builder.open(server_config(builder.model("writer-alone", "generate")))
    alone = answer(generator, "/tokenize", inputs=TEXT)
    assert alone == answer(tei_deployment, "/tokenize", inputs=TEXT, model="sorter")
    assert answer(generator, "/decode", ids=[5]) == answer(tei_deployment, "/decode", ids=[5])


@pytest.mark.parametrize(
    ("path", "fields", "status", "kind", "said"),
    [
        ("/tokenize", {"inputs": []}, 400, "Empty", "`inputs` cannot be empty"),
        ("/tokenize", {"inputs": ["a"] * 2049}, 413, "Validation", "inputs: 2049 items"),
        ("/tokenize", {"inputs": 3}, 422, "Validation", "inputs: "),
        ("/tokenize", {"inputs": ["a", 3]}, 422, "Validation", "inputs[1]: "),
        ("/tokenize", {"inputs": "a", "prompt_name": "b"}, 422, "Validation", "prompt_name: "),
        ("/tokenize", {"inputs": "a", "model": "b"}, 422, "Validation", "there is no model 'b'"),
        ("/decode", {"ids": []}, 400, "Empty", "`ids` cannot be empty"),
        ("/decode", {"ids": [[]] * 2049}, 413, "Validation", "ids: 2049 items"),
        ("/decode", {"ids": [5, [5]]}, 422, "Validation", "ids: all token ids"),
        ("/decode", {"ids": [5, -1]}, 422, "Validation", "ids: token id -1"),
        ("/decode", {"ids": [[5], [99_999]]}, 422, "Validation", "ids[1]: token id 99999"),
        ("/decode", {"ids": "a"}, 422, "Validation", "ids: "),
        ("/decode", {}, 422, "Validation", "ids"),
    ],
)
def test_bad_input(tei_deployment, path, fields, status, kind, said):
    found, found_kind, message = failure(tei_deployment, path, fields)
    assert (found, found_kind) == (status, kind)
    assert said in message
