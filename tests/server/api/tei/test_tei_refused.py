"""What TEI's endpoints refuse: status, kind and the beginning of the message."""

import pytest

from tests.server.api.tei.tei_client import failure

EMPTY, TOO_MANY, BAD = (400, "Empty"), (413, "Validation"), (422, "Validation")
INPUTS = [
    ({"inputs": []}, EMPTY, "`inputs` cannot be empty"),
    ({"inputs": ["a"] * 2049}, TOO_MANY, "inputs: 2049 items"),
    ({"inputs": ["a", ""]}, BAD, "inputs[1]: must not be empty"),
    ({"inputs": ["a", 5]}, BAD, "inputs"),
    ({"inputs": {"a": 1}}, BAD, "inputs: "),
    ({"inputs": None}, BAD, "inputs: "),
    ({}, BAD, "inputs: is required"),
    ({"inputs": [10**6]}, BAD, "inputs: token id 1000000"),
    ({"inputs": "a", "truncate": "yes"}, BAD, "truncate: "),
    ({"inputs": "a", "truncation_direction": "up"}, BAD, "truncation_dire"),
    ({"inputs": "a", "prompt_name": "query"}, BAD, "prompt_name: "),
]
"""Of every endpoint that embeds: fields and what is answered."""
EMBED = [
    *INPUTS,
    ({"inputs": "a", "normalize": "no"}, BAD, "normalize: "),
    ({"inputs": "a", "dimensions": 4}, BAD, "dimensions: "),
]
EMBED_ALL = [*INPUTS, ({"inputs": [[1] * 2048] * 257}, TOO_MANY, "")]
SIMILARITY = [
    ({"inputs": {"source_sentence": "a", "sentences": []}}, EMPTY, ""),
    ({"inputs": {"source_sentence": "a", "sentences": ["a"] * 2049}}, TOO_MANY, ""),
    ({"inputs": {"source_sentence": "a"}}, BAD, ""),
    ({"inputs": "a"}, BAD, ""),
]
PREDICT = [
    ({"inputs": []}, EMPTY, "`inputs`"),
    ({"inputs": [[]]}, BAD, "inputs[0]: 0 texts"),
    ({"inputs": [["a"], ["a", "b", "c"]]}, BAD, "inputs[1]: 3 texts"),
    ({"inputs": ["a", "b", "c"]}, BAD, "inputs: 3 texts"),
    ({"inputs": ["a", ["b"]]}, BAD, "inputs: "),
    ({"inputs": [["a"]] * 1001}, TOO_MANY, "inputs: 1001"),
    ({"inputs": 5}, BAD, "inputs: "),
]
RERANK = [
    ({"query": "a", "texts": []}, EMPTY, ""),
    ({"query": "a", "texts": ["b"] * 1001}, TOO_MANY, ""),
    ({"query": "a", "texts": ["b", 3]}, BAD, ""),
    ({"texts": ["b"]}, BAD, ""),
]
TOKENIZE = [
    ({"inputs": []}, EMPTY, "`inputs` cannot be empty"),
    ({"inputs": ["a"] * 2049}, TOO_MANY, "inputs: 2049 items"),
    ({"inputs": 3}, BAD, "inputs: "),
    ({"inputs": ["a", 3]}, BAD, "inputs[1]: "),
    ({"inputs": "a", "prompt_name": "b"}, BAD, "prompt_name: "),
    ({"inputs": "a", "model": "b"}, BAD, "there is no model 'b'"),
]
DECODE = [
    ({"ids": []}, EMPTY, "`ids` cannot be empty"),
    ({"ids": [[]] * 2049}, TOO_MANY, "ids: 2049 items"),
    ({"ids": [5, [5]]}, BAD, "ids: all or none"),
    ({"ids": [5, -1]}, BAD, "ids: token id -1"),
    ({"ids": [[5], [99_999]]}, BAD, "ids[1]: token id 99999"),
    ({"ids": "a"}, BAD, "ids: "),
    ({}, BAD, "ids"),
]
REFUSED = [
    ("tei_deployment", "/embed", EMBED),
    ("tei_deployment", "/embed_all", EMBED_ALL),
    ("splade_deployment", "/embed_sparse", INPUTS),
    ("tei_deployment", "/similarity", SIMILARITY),
    ("tei_deployment", "/predict", PREDICT),
    ("deployment", "/rerank", RERANK),
    ("tei_deployment", "/tokenize", TOKENIZE),
    ("tei_deployment", "/decode", DECODE),
]


@pytest.mark.parametrize(
    ("served", "path", "fields", "expected", "beginning"),
    [(served, path, *case) for served, path, cases in REFUSED for case in cases],
)
def test_a_bad_request(request, served, path, fields, expected, beginning) -> None:
    status, kind, message = failure(request.getfixturevalue(served), path, fields)
    assert (status, kind) == expected
    assert message.startswith(beginning)
