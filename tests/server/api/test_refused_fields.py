"""What each endpoint refuses, by the name of the field at fault, before an engine hears of it."""

from typing import Any

import pytest

from tests.server.chat_client import HELLO

JSON = dict[str, Any]
Cases = list[tuple[JSON, str]]
"""Fields of a request, and the one that is named."""

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
REFUSAL = {"type": "refusal", "refusal": "I cannot."}


def said(content: object, role: str = "user", **fields: object) -> JSON:
    return {"messages": [{"role": role, "content": content, **fields}]}


def inputs_of(*contents: list[str]) -> list[JSON]:
    return [
        {"content": [{"type": "text", "text": text} for text in content]} for content in contents
    ]


BOUNDS: dict[str, list[float]] = {
    "n": [0, -1, 129, 2**63],
    "best_of": [0, -1, 129, 2**63],
    "max_tokens": [-1, 2**31, 2**63],
    "max_completion_tokens": [-1, 2**31, 2**63],
    "min_tokens": [-1, 17, 2**31, 2**63],
    "top_k": [-2, 2**31, 2**63],
    "logprobs": [-1, 21, 2**63],
    "prompt_logprobs": [-1, 21, 2**63],
    "truncate_prompt_tokens": [-2, 0, 2049, 2**63],
    "seed": [-(2**63) - 1, 2**63],
    "priority": [-(2**63) - 1, 2**63],
    "temperature": [-0.1, 2.1],
    "top_p": [-0.1, 1.1],
    "min_p": [-0.01, 1.01],
    "presence_penalty": [-2.01, 2.01],
    "frequency_penalty": [-2.01, 2.01],
    "repetition_penalty": [-1, 0, 1e-40, 2.01],
    "timeout": [0, -1, 1e7, 2**63],
}
"""What is just outside, and far. Other types are planted by `tests/e2e/api/test_junk_fields.py`."""
COMPLETIONS: Cases = [
    *[({field: value}, field) for field, values in BOUNDS.items() for value in values],
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [1, -1]}, "prompt[1]"),
    ({"prompt": [[1], [2**63]]}, "prompt[1][0]"),
    ({"prompt": [[5], [5, 4_000_000]]}, "prompt[1][1]"),
    ({"prompt": ["a"] * 2049}, "prompt"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "s" * 257}, "cache_salt"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["a", 2]}, "stop[1]"),
    ({"stop_token_ids": 3}, "stop_token_ids"),
    ({"stop_token_ids": ["3"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [3, -1]}, "stop_token_ids[1]"),
    ({"stop_token_ids": [3, 2**31 - 1]}, "stop_token_ids[1]"),
    ({"stop_token_ids": [3, 2**63]}, "stop_token_ids[1]"),
    ({"stop_token_ids": [3] * 1025}, "stop_token_ids"),
    ({"allowed_token_ids": [5, 99_999]}, "allowed_token_ids[1]"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
    ({"allowed_token_ids": ["a"]}, "allowed_token_ids[0]"),
    ({"allowed_token_ids": 5}, "allowed_token_ids"),
    ({"bad_words": ["a", ""]}, "bad_words[1]"),
    ({"bad_words": ["a" * 129]}, "bad_words[0]"),
    ({"bad_words": ["a"] * 257}, "bad_words"),
    ({"bad_words": "a"}, "bad_words"),
    *[({"logit_bias": {key: 1}}, "logit_bias") for key in ("hello", "-1", "2147483648")],
    *[({"logit_bias": {"1": bias}}, "logit_bias.1") for bias in (-100.1, 101)],
    ({"logit_bias": dict.fromkeys(range(301), 1)}, "logit_bias"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ({"min_tokens": 4, "max_tokens": 3}, "min_tokens"),
    ({"min_tokens": 1, "max_tokens": 0}, "min_tokens"),
    ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": {"continuous_usage_stats": True}}, "stream_options"),
    ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"choice": []}, "choice"),
    ({"truncation_side": "middle"}, "truncation_side"),
]
CHAT: Cases = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hello"}, "messages"),
    ({"messages": [{"content": "a"}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "", "content": "a"}]}, "messages[1].role"),
    ({"messages": [*HELLO, {"role": "x" * 65, "content": "a"}]}, "messages[1].role"),
    ({"messages": [{"role": "function"}]}, "messages[0].content"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    (said(None), "messages[0].content"),
    (said(None, "tool"), "messages[0].content"),
    ({"messages": [*HELLO, {"role": "user", "content": 3}]}, "messages[1].content"),
    (said([{"type": "text"}]), "messages[0].content[0].text"),
    (said([{"type": "text", "text": "a"}, {"type": "image_url"}]), "messages[0].content[1]"),
    (said(["a"]), "messages[0].content[0]"),
    (said("a", name=3), "messages[0].name"),
    (said("a", tool_calls=[TOOL]), "messages[0].tool_calls"),
    (said("a", refusal="no"), "messages[0].refusal"),
    (said([REFUSAL]), "messages[0].content[0]"),
    (said([{"type": "refusal"}], "assistant"), "messages[0].content[0].refusal"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    (said(None, "assistant") | {"continue_final_message": True}, "continue_final_message"),
    ({"stop_token_ids": [99999]}, "stop_token_ids[0]"),
    ({"regex": "a", "choice": ["a"]}, "choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
]
COHERE_CHAT: Cases = [
    ({"messages": []}, "messages"),
    (said("a", ""), "messages[0].role"),
    (said([{"type": "image_url"}]), "messages[0].content[0]"),
    ({"citation_options": {"mode": "SOMETIMES"}}, "citation_options.mode"),
    ({"temperature": 3}, "temperature"),
    ({"p": 2}, "p"),
    ({"k": -1}, "k"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"response_format": {"type": "json_object", "json_schema": [1]}},
     "response_format.json_schema"),
]  # fmt: skip
EMBEDDINGS: Cases = [
    ({"input": ""}, "input"),
    ({"input": ["a", ""]}, "input[1]"),
    ({"input": []}, "input"),
    ({"input": [[]]}, "input[0]"),
    ({"input": [[3], []]}, "input[1]"),
    ({"input": ["a", 3]}, "input[1]"),
    ({"input": [3, [3]]}, "input[1]"),
    ({"input": [3, -1]}, "input[1]"),
    ({"input": [[3], [4, 100_000]]}, "input[1][1]"),
    ({"input": [2**40]}, "input[0]"),
    ({"input": ["a"] * 2049}, "input"),
    ({"input": [[1]] * 2049}, "input"),
    ({"input": None}, "input"),
    ({"input": {"text": "a"}}, "input"),
    ({"encoding_format": "hex"}, "encoding_format"),
    *[({"embed_dtype": dtype}, "embed_dtype") for dtype in ("float64", "uint8", "", 8, "FLOAT32")],
    *[({"truncate_prompt_tokens": limit}, "truncate_prompt_tokens")
      for limit in (0, -2, 2049, 2**63, 5.0, True)],
    ({"truncation": False, "truncate_prompt_tokens": 5}, "truncation"),
    ({"truncation": "END"}, "truncation"),
    ({"truncation_side": "middle"}, "truncation_side"),
    ({"truncation_side": 1}, "truncation_side"),
    ({"add_special_tokens": "no"}, "add_special_tokens"),
    *[({"priority": priority}, "priority") for priority in (2**63, -(2**63) - 1, 1.0, True)],
    ({"dimensions": 8, "output_dimension": 4}, "output_dimension"),
    ({"output_dimension": 4}, "output_dimension"),
    ({"embed_dtype": "int8", "output_dtype": "binary"}, "output_dtype"),
    ({"output_dtype": "uint8"}, "output_dtype"),
]  # fmt: skip
COHERE_EMBED: Cases = [
    ({"texts": None}, "texts"),
    ({"texts": []}, "texts"),
    ({"texts": ["a", ""]}, "texts[1]"),
    ({"texts": "a"}, "texts"),
    ({"texts": ["a"] * 2049}, "texts"),
    ({"inputs": inputs_of(["a"])}, "inputs"),
    ({"texts": None, "inputs": []}, "inputs"),
    ({"texts": None, "inputs": [{"content": []}]}, "inputs[0].content"),
    ({"texts": None, "inputs": inputs_of(["a"], [""])}, "inputs[1]"),
    ({"inputs": [*inputs_of(["a"]), {"content": [IMAGE]}]}, "inputs[1].content[0].type"),
    ({"inputs": [{"content": [IMAGE | {"type": "text", "text": "a"}]}]},
     "inputs[0].content[0].image_url"),
    ({"inputs": [{"content": [{"type": "text"}]}]}, "inputs[0].content[0].text"),
    ({"truncate": "MIDDLE"}, "truncate"),
    ({"truncate": "NONE", "max_tokens": 4}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"input_type": "image"}, "input_type"),
    ({"embedding_types": []}, "embedding_types"),
    ({"embedding_types": ["float", "int4"]}, "embedding_types[1]"),
    ({"output_dimension": 4}, "output_dimension"),
]  # fmt: skip
RERANK: Cases = [
    ({"documents": []}, "documents"),
    ({"documents": ["a"] * 1001}, "documents"),
    ({"documents": ["a", 3]}, "documents[1]"),
    ({"documents": ["a", {"title": "b"}]}, "documents[1].text"),
    ({"documents": "a"}, "documents"),
    ({"query": ""}, "query"),
    ({"query": ["a"]}, "query"),
    ({"query": None}, "query"),
    *[({"top_n": most}, "top_n") for most in (0, -1, 2**63, 1.0)],
    ({"top_k": 0}, "top_k"),
    ({"top_n": 1, "top_k": 2}, "top_k"),
    ({"max_tokens_per_doc": -1}, "max_tokens_per_doc"),
    ({"truncation": 1}, "truncation"),
    ({"instruction": "be kind"}, "instruction"),
]
SCORE: Cases = [
    ({"text_1": None}, "text_1"),
    ({"text_2": None}, "text_2"),
    ({"text_1": []}, "text_1"),
    ({"text_2": []}, "text_2"),
    ({"text_1": ["a", "b"]}, "text_1"),
    ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
    ({"queries": "c"}, "queries"),
    ({"documents": "a"}, "documents"),
    ({"text_2": ["a", 3]}, "text_2[1]"),
    ({"text_2": ["a"] * 1001}, "text_2"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 2049}, "truncate_prompt_tokens"),
    ({"model": "sorter"}, "model"),
]
CLASSIFY: Cases = [
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": ["a", 3]}, "input[1]"),
    ({"input": [[1], [10**6]]}, "input[1][0]"),
    ({"input": ["a"] * 2049}, "input"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"model": "plain"}, "model"),
]
TOKENIZE: Cases = [
    ({"prompt": None}, "prompt"),
    ({"prompt": None, "messages": None}, "prompt"),
    ({"messages": HELLO}, "messages"),
    ({"prompt": None, "messages": []}, "messages"),
    ({"prompt": None, "messages": [{"role": "user"}]}, "messages[0].content"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"add_generation_prompt": True}, "add_generation_prompt"),
    ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
]
DETOKENIZE: Cases = [
    ({"tokens": [-1]}, "tokens[0]"),
    ({"tokens": [1, 99_999]}, "tokens[1]"),
    ({"tokens": [2**63]}, "tokens[0]"),
]
COHERE_TEXTS: JSON = {"model": "plain", "texts": ["a"]}
REFUSED: list[tuple[str, str, JSON, Cases]] = [
    ("deployment", "/v1/completions", {"model": "writer", "prompt": "a"}, COMPLETIONS),
    ("chats", "/v1/chat/completions", {"model": "writer", "messages": HELLO}, CHAT),
    ("chats", "/v2/chat", {"model": "writer", "messages": HELLO}, COHERE_CHAT),
    ("encoders", "/v1/embeddings", {"model": "plain", "input": "a"}, EMBEDDINGS),
    ("encoders", "/v1/embed", COHERE_TEXTS, COHERE_EMBED),
    ("encoders", "/v2/embed", COHERE_TEXTS, COHERE_EMBED),
    ("encoders", "/v1/rerank", {"model": "judge", "query": "a", "documents": ["b"]}, RERANK),
    ("encoders", "/v1/score", {"model": "judge", "text_1": "a", "text_2": "b"}, SCORE),
    ("encoders", "/v1/classify", {"model": "sorter", "input": "a"}, CLASSIFY),
    ("chats", "/tokenize", {"model": "writer", "prompt": "a"}, TOKENIZE),
    ("chats", "/detokenize", {"model": "writer"}, DETOKENIZE),
]


@pytest.mark.parametrize(
    ("served", "path", "body", "fields", "param"),
    [(*place, fields, param) for *place, cases in REFUSED for fields, param in cases],
)
def test_a_field_at_fault_is_named(request, served, path, body, fields, param) -> None:
    deployment = request.getfixturevalue(served)
    error = deployment.refusal(path, **body | fields)
    assert error["param"] == param or error["param"].startswith(f"{param}[0].")
    assert error["message"].startswith(param) or path not in ("/v2/chat", "/v1/embed", "/v2/embed")
    assert not any(engine.received for engine in deployment.engines.values())
