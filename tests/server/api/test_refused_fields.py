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


def wrong(field: str, *values: object, at: str = "") -> Cases:
    """A case for each value of a field; the one at fault is within it where `at` says so."""
    return [({field: value}, at or field) for value in values]


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
NAMED_ALTERNATIVES: Cases = [
    *wrong("logprob_token_ids", 5, "5", {"5": 1}, [5] * 129),
    *wrong("logprob_token_ids", [-1], ["5"], [5.0], [2**63], [None], at="logprob_token_ids[0]"),
    *wrong("logprob_token_ids", [5, 99_999], at="logprob_token_ids[1]"),
]
BOTH: JSON = {"prompt": "a", "prompt_token_ids": [5]}
COMPLETIONS: Cases = [
    *[case for field, values in BOUNDS.items() for case in wrong(field, *values)],
    *wrong("prompt", [], ["a"] * 2049),
    *wrong("prompt", [[]], at="prompt[0]"),
    *wrong("prompt", ["a", 1], [1, -1], at="prompt[1]"),
    *wrong("prompt", [[1], [2**63]], at="prompt[1][0]"),
    *wrong("prompt", [[5], [5, 4_000_000]], at="prompt[1][1]"),
    *wrong("prompt", {"prompt": 5}, at="prompt.prompt"),
    *wrong("prompt", {}, {"prompt": None}, {"prompts": "a"}, at="prompt.prompt_token_ids"),
    *wrong(
        "prompt",
        BOTH,
        {"prompt_token_ids": "a"},
        {"prompt_token_ids": []},
        at="prompt.prompt_token_ids",
    ),
    *wrong(
        "prompt",
        {"prompt_token_ids": [5, "a"]},
        {"prompt_token_ids": [5, 4_000_000]},
        at="prompt.prompt_token_ids[1]",
    ),
    *wrong(
        "prompt",
        [[5], [6], BOTH],
        ["a", "b", {}],
        ["a", "b", {"prompt_token_ids": [5]}],
        at="prompt[2].prompt_token_ids",
    ),
    *wrong(
        "prompt",
        [{"prompt_token_ids": [5]}, {"prompt_token_ids": [-1]}],
        at="prompt[1].prompt_token_ids[0]",
    ),
    *wrong("prompt", [{"prompt": "a"}, [5]], [[5], "a"], at="prompt[1]"),
    *wrong("prompt", [{"prompt": "a"}, {"prompt": "x" * 4_000_000}], at="prompt[1].prompt"),
    *wrong(
        "prompt",
        [{"prompt": "a", "multi_modal_data": {"image": "a"}}],
        at="prompt[0].multi_modal_data",
    ),
    *wrong("prompt", {"prompt": "a", "cache_salt": "b"}, at="prompt.cache_salt"),
    *wrong("prompt", [{"prompt": "a"}] * 2049),
    *wrong("cache_salt", "", "s" * 257),
    *wrong("stop", ["a"] * 17),
    *wrong("stop", ["a", ""], ["a", 2], at="stop[1]"),
    *wrong("stop_token_ids", 3, [3] * 1025),
    *wrong("stop_token_ids", ["3"], at="stop_token_ids[0]"),
    *wrong("stop_token_ids", [3, -1], [3, 2**31 - 1], [3, 2**63], at="stop_token_ids[1]"),
    *wrong("allowed_token_ids", 5),
    *wrong("allowed_token_ids", [-1], ["a"], at="allowed_token_ids[0]"),
    *wrong("allowed_token_ids", [5, 99_999], at="allowed_token_ids[1]"),
    *[(fields | {"logprobs": 1}, at) for fields, at in NAMED_ALTERNATIVES],
    *wrong("logprob_token_ids", [5]),
    ({"logprob_token_ids": [5], "logprobs": 1, "max_tokens": 0}, "logprob_token_ids"),
    ({"logprob_token_ids": [5], "logprobs": 1, "max_tokens": 0, "echo": True}, "logprob_token_ids"),
    *wrong("bad_words", "a", ["a"] * 257),
    *wrong("bad_words", ["a" * 129], at="bad_words[0]"),
    *wrong("bad_words", ["a", ""], at="bad_words[1]"),
    *wrong("logit_bias", {"hello": 1}, {"-1": 1}, {"2147483648": 1}, dict.fromkeys(range(301), 1)),
    *wrong("logit_bias", {"1": -100.1}, {"1": 101}, at="logit_bias.1"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ({"min_tokens": 4, "max_tokens": 3}, "min_tokens"),
    ({"min_tokens": 1, "max_tokens": 0}, "min_tokens"),
    ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens"),
    *wrong("stream_options", {"include_usage": True}, {"continuous_usage_stats": True}),
    ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
    *wrong("response_format", {"type": "xml"}, at="response_format.type"),
    *wrong("choice", []),
    *wrong("truncation_side", "middle"),
]
CHAT: Cases = [
    *wrong("messages", None, [], "Hello"),
    *wrong("messages", [{"content": "a"}], at="messages[0].role"),
    *wrong("messages", [{"role": "function"}], [{"role": "user"}], at="messages[0].content"),
    ({"messages": [*HELLO, {"role": "", "content": "a"}]}, "messages[1].role"),
    ({"messages": [*HELLO, {"role": "x" * 65, "content": "a"}]}, "messages[1].role"),
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
    *wrong("top_logprobs", 2),
    *[(fields | {"logprobs": True}, at) for fields, at in NAMED_ALTERNATIVES],
    *wrong("logprob_token_ids", [5]),
    ({"logprob_token_ids": [5], "logprobs": False}, "logprob_token_ids"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    *wrong("logprobs", 3),
    *wrong("max_completion_tokens", 0),
    ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
    *wrong("n", 0, 129),
    *wrong("stream_options", {"include_usage": True}),
    *wrong("chat_template_kwargs", {"messages": []}, at="chat_template_kwargs.messages"),
    *wrong("chat_template_kwargs", {"bos_token": "x"}, at="chat_template_kwargs.bos_token"),
    *wrong("chat_template_kwargs", []),
    *wrong("metadata", {"a": 1}, at="metadata.a"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    (said(None, "assistant") | {"continue_final_message": True}, "continue_final_message"),
    *wrong("stop_token_ids", [99999], at="stop_token_ids[0]"),
    ({"regex": "a", "choice": ["a"]}, "choice"),
    *wrong("response_format", {"type": "xml"}, at="response_format.type"),
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
    *wrong("input", "", [], None, {"text": "a"}, ["a"] * 2049, [[1]] * 2049),
    *wrong("input", [[]], [2**40], at="input[0]"),
    *wrong("input", ["a", ""], ["a", 3], [3, [3]], [3, -1], [[3], []], at="input[1]"),
    *wrong("input", [[3], [4, 100_000]], at="input[1][1]"),
    *wrong("encoding_format", "hex"),
    *wrong("embed_dtype", "float64", "uint8", "", 8, "FLOAT32"),
    *wrong("truncate_prompt_tokens", 0, -2, 2049, 2**63, 5.0, True),
    ({"truncation": False, "truncate_prompt_tokens": 5}, "truncation"),
    *wrong("truncation", "END"),
    *wrong("truncation_side", "middle", 1),
    *wrong("add_special_tokens", "no"),
    *wrong("priority", 2**63, -(2**63) - 1, 1.0, True),
    ({"dimensions": 8, "output_dimension": 4}, "output_dimension"),
    *wrong("output_dimension", 4),
    ({"embed_dtype": "int8", "output_dtype": "binary"}, "output_dtype"),
    *wrong("output_dtype", "uint8"),
]
COHERE_EMBED: Cases = [
    *wrong("texts", None, [], "a", ["a"] * 2049),
    *wrong("texts", ["a", ""], at="texts[1]"),
    *wrong("inputs", inputs_of(["a"])),
    ({"texts": None, "inputs": []}, "inputs"),
    ({"texts": None, "inputs": [{"content": []}]}, "inputs[0].content"),
    ({"texts": None, "inputs": inputs_of(["a"], [""])}, "inputs[1]"),
    ({"inputs": [*inputs_of(["a"]), {"content": [IMAGE]}]}, "inputs[1].content[0].type"),
    ({"inputs": [{"content": [IMAGE | {"type": "text", "text": "a"}]}]},
     "inputs[0].content[0].image_url"),
    ({"inputs": [{"content": [{"type": "text"}]}]}, "inputs[0].content[0].text"),
    *wrong("truncate", "MIDDLE"),
    ({"truncate": "NONE", "max_tokens": 4}, "max_tokens"),
    *wrong("max_tokens", 0),
    *wrong("input_type", "image"),
    *wrong("embedding_types", []),
    *wrong("embedding_types", ["float", "int4"], at="embedding_types[1]"),
    *wrong("output_dimension", 4),
]  # fmt: skip
RERANK: Cases = [
    *wrong("documents", [], "a", ["a"] * 1001),
    *wrong("documents", ["a", 3], at="documents[1]"),
    *wrong("documents", ["a", {"title": "b"}], at="documents[1].text"),
    *wrong("query", "", ["a"], None),
    *wrong("top_n", 0, -1, 2**63, 1.0),
    *wrong("top_k", 0),
    ({"top_n": 1, "top_k": 2}, "top_k"),
    *wrong("max_tokens_per_doc", -1),
    *wrong("truncation", 1),
    *wrong("instruction", "be kind"),
]
SCORE: Cases = [
    *wrong("text_1", None, [], ["a", "b"]),
    *wrong("text_2", None, [], ["a"] * 1001),
    *wrong("text_2", ["a", 3], at="text_2[1]"),
    ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
    *wrong("queries", "c"),
    *wrong("documents", "a"),
    *wrong("truncate_prompt_tokens", 0, 2049),
    *wrong("model", "sorter"),
]
CLASSIFY: Cases = [
    *wrong("input", [], None, ["a"] * 2049),
    *wrong("input", ["a", 3], at="input[1]"),
    *wrong("input", [[1], [10**6]], at="input[1][0]"),
    *wrong("truncate_prompt_tokens", 0),
    *wrong("model", "plain"),
]
TOKENIZE: Cases = [
    *wrong("prompt", None),
    ({"prompt": None, "messages": None}, "prompt"),
    *wrong("messages", HELLO),
    ({"prompt": None, "messages": []}, "messages"),
    ({"prompt": None, "messages": [{"role": "user"}]}, "messages[0].content"),
    *wrong("continue_final_message", True),
    *wrong("add_generation_prompt", True),
    *wrong("chat_template_kwargs", {"a": 1}),
]
DETOKENIZE: Cases = [
    *wrong("tokens", [-1], [2**63], at="tokens[0]"),
    *wrong("tokens", [1, 99_999], at="tokens[1]"),
]
PREDICATE: JSON = {"type": "predicate", "instructions": "a"}
CHOICES: list[JSON] = [{"value": "a"}, {"value": "true"}, {"value": True}]
LEVELS: list[JSON] = [{"label": "a"}, {"label": "a"}]
CALL: JSON = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT: JSON = {"type": "function_call_output", "call_id": "c", "output": "a"}
CUSTOM: JSON = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "a"}
PICTURE: JSON = {"type": "input_image", "image_url": "https://images.example/a.png"}


def nested(levels: int) -> JSON:
    data: JSON = {}
    for _ in range(levels - 1):
        data = {"a": data}
    return data


def asked(last: JSON, before: int = 0) -> JSON:
    return {"questions": [PREDICATE] * before + [last]}


def choosing(*choices: JSON) -> JSON:
    return asked({"type": "choice", "instructions": "a", "choices": [*choices]}, before=7)


def scored(levels: object) -> JSON:
    return asked({"type": "score", "instructions": "a", "levels": levels})


def part(role: str, kind: str, **fields: object) -> JSON:
    return {"input": [{"role": role, "content": [{"type": kind, **fields}]}]}


DECISIONS: Cases = [
    *wrong("input", None, 3, {}),
    *wrong("input", [{"role": "user", "content": "a"}, "a"], at="input[1]"),
    *wrong("input", [{"content": "a"}], [{"role": "tool", "content": "a"}], at="input[0].role"),
    *wrong("input", [{"role": "user"}], at="input[0].content"),
    *wrong("input", [{"type": "reasoning"}], at="input[0].type"),
    *wrong("input", [CALL | {"name": None}], at="input[0].name"),
    *wrong("input", [CALL | {"output": "a"}], at="input[0].output"),
    *wrong("input", [CALL | {"role": "user"}], at="input[0].role"),
    *wrong("input", [CALL, OUTPUT | {"call_id": "d"}], at="input[1].call_id"),
    *wrong("input", [CUSTOM, OUTPUT], at="input[1].call_id"),
    *wrong("input", [OUTPUT, OUTPUT], at="input[0].call_id"),
    *wrong("input", [CALL, OUTPUT | {"output": [PICTURE]}], at="input[1].output[0].image_url"),
    *wrong("input", [CALL, OUTPUT | {"output": None}], at="input[1].output"),
    ({"input": [{"role": "user", "content": [PICTURE]}]}, "input[0].content[0].image_url"),
    (part("user", "input_image"), "input[0].content[0]"),
    (part("user", "output_text", text="a"), "input[0].content[0]"),
    (part("system", "input_json", data={}), "input[0].content[0]"),
    (part("developer", "refusal", refusal="a"), "input[0].content[0]"),
    (part("assistant", "input_text", text="a"), "input[0].content[0]"),
    (part("user", "input_text"), "input[0].content[0].text"),
    (part("user", "input_text", text="a", data={}), "input[0].content[0].data"),
    (part("user", "input_json"), "input[0].content[0].data"),
    (part("user", "input_json", data=["a"]), "input[0].content[0].data[0]"),
    (part("user", "input_json", data=nested(33)), "input[0].content[0].data"),
    (part("user", "input_json", data={"a": [0] * 9_999}), "input[0].content[0].data"),
    (part("user", "input_json", data={"a": "é" * (128 << 10)}), "input[0].content[0].data"),
    *wrong("questions", None, [], [PREDICATE] * 401),
    (asked({"instructions": "a"}), "questions[0].type"),
    (asked({"type": "yes", "instructions": "a"}), "questions[0].type"),
    (asked({"type": "predicate"}), "questions[0].instructions"),
    (asked(PREDICATE | {"name": 3}), "questions[0].name"),
    (asked(PREDICATE | {"choices": CHOICES}), "questions[0].choices"),
    (asked(PREDICATE | {"instructions": [PICTURE]}), "questions[0].instructions[0].image_url"),
    (asked(PREDICATE | {"instructions": "a" * 4_000_000}, before=1), "questions[1]"),
    (choosing(*CHOICES[:1]), "questions[7].choices"),
    (choosing(*({"value": str(number)} for number in range(256))), "questions[7].choices"),
    (choosing(*CHOICES[:2], CHOICES[0]), "questions[7].choices[2].value"),
    (choosing(*CHOICES, {"value": True}), "questions[7].choices[3].value"),
    (choosing({"value": "a"}, {"value": 1}), "questions[7].choices[1].value"),
    (choosing({"value": "a"}, {}), "questions[7].choices[1].value"),
    (scored(LEVELS[:1]), "questions[0].levels"),
    (scored(LEVELS * 6), "questions[0].levels"),
    (scored([{"label": "a"}, {"label": 1}]), "questions[0].levels[1].label"),
    *wrong("prompt_cache_key", 3),
    ({"prompt_cache_key": "a", "cache_salt": "b"}, "prompt_cache_key"),
]
NOUL: JSON = {"type": "noul", "instructions": "Is it late?"}


def of_state(criteria: object, kind: str = "choice") -> JSON:
    return {"questions": {"late": NOUL, "q": {"type": kind, "criteria": criteria}}}


SYSTEM_ONE: Cases = [
    *wrong("questions", None, [], {}, {str(number): NOUL for number in range(401)}),
    *wrong("questions", {"": NOUL}),
    *wrong("questions", {"late": NOUL, "q": 3}, at="questions.q"),
    *wrong("questions", {"q": {}}, {"q": {"type": "box"}}, at="questions.q.type"),
    *wrong("questions", {"q": NOUL | {"depends_on": ["a"]}}, at="questions.q.depends_on"),
    *[(of_state(given), "questions.q.criteria") for given in (None, {}, ["a"], "a")],
    (of_state(dict.fromkeys(map(str, range(256)))), "questions.q.criteria"),
    *[(of_state(given, "noul"), "questions.q.criteria") for given in (["yes", "no"], "a")],
    (of_state({"maybe": "a"}, "noul"), "questions.q.criteria.maybe"),
    *[
        (of_state(given, "score"), "questions.q.criteria")
        for given in (None, ["calm"], {"calm": None}, [*range(11)])
    ],
    (of_state(["calm", "cross", "calm"], "score"), "questions.q.criteria[2]"),
    *wrong("instructions", 3),
    *wrong("chat_template_kwargs", {"messages": []}, at="chat_template_kwargs.messages"),
    *wrong("chat_template_kwargs", []),
    *wrong("images", ["https://images.example/a.png"]),
    *wrong("joint", True),
]
COHERE_TEXTS: JSON = {"model": "plain", "texts": ["a"]}
REFUSED: list[tuple[str, str, JSON, Cases]] = [
    ("deployment", "/v1/completions", {"model": "writer", "prompt": "a"}, COMPLETIONS),
    ("chats", "/v1/chat/completions", {"model": "writer", "messages": HELLO}, CHAT),
    ("chats", "/v2/chat", {"model": "writer", "messages": HELLO}, COHERE_CHAT),
    ("chats", "/v1/decisions", {"model": "writer", "input": "a", **asked(PREDICATE)}, DECISIONS),
    ("chats", "/v1/systemone", {"model": "writer", "state": "a", **of_state({"b": 1})}, SYSTEM_ONE),
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
