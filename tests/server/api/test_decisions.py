"""`/v1/decisions`: how an engine is asked, and the answers that are made of what it reads."""

import json
import math
from typing import Any

import numpy as np
import pytest

from engine_core.messages import Failed, ReadJob
from tests.server.api.test_refused_fields import nested
from tests.server.conftest import Deployment

PATH = "/v1/decisions"
JSON = dict[str, Any]
LATE: JSON = {"type": "predicate", "instructions": "It is late."}
TEAM: JSON = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team?",
    "choices": [
        {"value": "billing"}, {"value": True, "description": "all"}, {"value": "true"},
    ],
}  # fmt: skip
ANGER: JSON = {
    "type": "score",
    "instructions": "How angry?",
    "levels": [{"label": "calm"}, {"label": "cross", "description": "some"}, {"label": "furious"}],
}
BEGUN = "<s><|start_header_id|>user<|end_header_id|>\n\n"
ENDED = "<|eot_id|>[1]<|start_header_id|>assistant<|end_header_id|>\n\n"
LETTER = "\n\nAnswer with only the letter of the option that fits best."
DIGIT = "\n\nAnswer with only the number of the level that fits best."
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":\n1}'}
CALLED = '{"type":"function_call","call_id":"c1","name":"f","arguments":"{\\"a\\":\\n1}"}'


def decide(
    served: Deployment, *questions: JSON, model: str | None = "writer", **fields: Any
) -> JSON:
    return served.ask(PATH, model=model, **{"input": "Text.", "questions": questions} | fields)


def prompts(job: ReadJob) -> list[str]:
    return ["".join(job.pieces[piece] for piece in prompt) for prompt in job.prompts]


def said(role: str, content: object, **fields: object) -> JSON:
    return {"role": role, "content": content, **fields}


def test_each_question_is_a_prompt_behind_the_input_which_is_sent_once(chats, tokenizer):
    decide(chats, LATE, TEAM, ANGER)
    job = chats.job("writer")
    assert prompts(job) == [
        f"{BEGUN}Text.\n\nIt is late.\n\nA. true\nB. false{LETTER}{ENDED}",
        f"{BEGUN}Text.\n\nWhich team?\n\nA. billing\nB. true: all\nC. true{LETTER}{ENDED}",
        f"{BEGUN}Text.\n\nHow angry?\n\n0. calm\n1. cross: some\n2. furious{DIGIT}{ENDED}",
    ]
    assert [prompt[::2] for prompt in job.prompts] == [(0, 4)] * 3
    assert len(job.pieces) == 5
    labels = [np.frombuffer(ids, np.int32).tolist() for ids in job.tokens]
    assert [tokenizer.decode(ids[:-1]) for ids in labels] == ["AB", "ABC", "012"]


def test_answers_are_the_shares_of_labels_and_confidence_is_over_the_vocabulary(chats):
    chats.reset(chances=[math.log(chance) for chance in (0.1, 0.4, 0.3)])
    late, team, anger = decide(chats, LATE | {"name": ""}, TEAM, ANGER)["answers"]
    assert late == {"type": "predicate", "name": "", "probability": pytest.approx(0.2)}
    shares = [pytest.approx(each) for each in (0.125, 0.5, 0.375)]
    assert team == {
        "type": "choice",
        "name": "team",
        "choice": True,
        "confidence": pytest.approx(0.4),
        "probabilities": [
            {"value": value, "probability": share}
            for value, share in zip(["billing", True, "true"], shares, strict=True)
        ],
    }
    assert anger == {
        "type": "score",
        "name": None,
        "score": pytest.approx(0.5 + 2 * 0.375),
        "confidence": pytest.approx(0.4),
        "probabilities": [
            {"label": label, "value": value, "probability": shares[value]}
            for value, label in enumerate(["calm", "cross", "furious"])
        ],
    }


def test_labels_of_no_probability_have_equal_shares(chats):
    chats.reset(chances=[-1e4])
    (answer,) = decide(chats, ANGER)["answers"]
    assert (answer["score"], answer["confidence"]) == (pytest.approx(1), 0)


@pytest.mark.parametrize("cached", [0, 7, 1000])
def test_the_input_counts_once(chats, tokenizer, cached):
    chats.reset(cached=cached)
    usage = decide(chats, LATE, ANGER)["usage"]
    pieces = tokenizer.encode(chats.job("writer").pieces, add_special_tokens=False)
    before, *questions, ending = [len(ids) // 4 for ids in pieces]
    tokens = before + sum(questions) + 2 * ending
    found = min(cached, before)
    details = {"cached_tokens": found, "cache_write_tokens": before - found}
    assert usage == {
        "input_tokens": tokens,
        "input_tokens_details": details,
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 2,
    }


@pytest.mark.parametrize(
    ("given", "turns"),
    [
        ("", "<U>Q"),
        ([], "<U>Q"),
        ([said("user", "")], "<U>Q"),
        ([said("user", "a"), said("user", ""), said("user", "b")], "<U>a\n\nb\n\nQ"),
        ([said("user", "a", type="message"), said("assistant", "b")], "<U>a<A>b<U>Q"),
        ([said("system", "a"), said("developer", "b")], "<S>a<D>b<U>Q"),
        ([said("system", "a"), said("system", "b"), said("user", "c")], "<S>a\n\nb<U>c\n\nQ"),
        ([said("assistant", "a", phase="commentary"), CALL], f"<A>a<U>{CALLED}\n\nQ"),
        (
            [
                said("user", [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_json", "data": [{"b": [1.5, None, "é\n"]}]},
                ]),
                CALL,
                {"type": "function_call_output", "call_id": "c1", "output": "4\n2"},
            ],
            '<U>a\n[{"b":[1.5,null,"é\\n"]}]\n\n' + CALLED + "\n\n"
            '{"type":"function_call_output","call_id":"c1","output":"4\\n2"}\n\nQ',
        ),
        (
            [
                {"type": "custom_tool_call_output", "call_id": "c2", "output": [
                    {"type": "input_text", "text": "4"}, {"type": "input_text", "text": "2"},
                ]},
                {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x",
                 "namespace": "n", "id": "i", "status": "completed"},
            ],
            (
                '<U>{"type":"custom_tool_call_output","call_id":"c2","output":"4\\n2"}\n\n'
                '{"type":"custom_tool_call","call_id":"c2","name":"g","input":"x"}\n\nQ'
            ),
        ),
        (
            [said("assistant", [
                {"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"},
            ])],
            "<A>a\nb<U>Q",
        ),
    ],
)  # fmt: skip
def test_turns(chats, given, turns):
    decide(chats, LATE | {"instructions": "Q"}, model="turns", input=given)
    (prompt,) = prompts(chats.job("turns"))
    assert prompt == f"{turns}\n\nA. true\nB. false{LETTER}<A>"


def test_instructions_may_have_parts(chats):
    parts = [{"type": "input_text", "text": "Is"}, {"type": "input_json", "data": {"a": 1}}]
    decide(chats, LATE | {"instructions": parts}, model="turns", input="")
    assert prompts(chats.job("turns"))[0].startswith('<U>Is\n{"a":1}\n\nA. true')


@pytest.mark.parametrize(
    "data", [nested(32), {"a": [0] * 9_998}, {"a": "é" * ((128 << 10) - 4)}, {"a": 10**40}, [], {}]
)
def test_the_largest_json_and_the_most_questions(chats, data):
    given = [said("user", [{"type": "input_json", "data": data}])]
    found = decide(chats, *[LATE] * 400, model="turns", input=given)
    assert len(found["answers"]) == 400
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    assert chats.job("turns").pieces[0] == f"<U>{text}\n\n"


def test_a_model_without_a_template_reads_plain_text(chats):
    given = [said("system", "a"), said("user", "b"), said("assistant", "c")]
    decide(chats, LATE, model="plain", input=given)
    decide(chats, LATE, model="org/deep/model", input="d")
    (several,), (one,) = (prompts(chats.job(each)) for each in ("plain", "org/deep/model"))
    question = f"It is late.\n\nA. true\nB. false{LETTER}\n\nassistant:\n"
    assert several == f"<s>system:\na\n\nuser:\nb\n\nassistant:\nc\n\nuser:\n{question}"
    assert one == f"<s>user:\nd\n\n{question}"


def test_a_broken_template_is_no_missing_one(chats):
    refused = chats.refusal(PATH, model="broken", input="a", questions=[LATE])
    assert refused["param"] == "model"


def test_a_switch_of_the_template_closes_reasoning(chats):
    decide(chats, LATE, model="chatml")
    assert chats.job("chatml").pieces[-1] == "<|im_end|>\n<|im_start|>assistant\n<think></think>"


@pytest.mark.parametrize("field", ["cache_salt", "prompt_cache_key"])
def test_a_key_of_the_cache_parts_it(chats, field):
    decide(chats, LATE, **{field: "mine", "priority": 3})
    assert chats.job("writer").cache_salt.endswith("mine")
    assert chats.job("writer").priority == 3
    both = {"cache_salt": "mine", "prompt_cache_key": "yours"}
    refused = chats.refusal(PATH, model="writer", input="a", questions=[LATE], **both)
    assert refused["param"] == "prompt_cache_key"


def test_too_few_labels(chats):
    options = [{"value": str(number)} for number in range(30)]
    refused = chats.refusal(
        PATH, model="writer", input="a", questions=[TEAM | {"choices": options}]
    )
    assert refused["param"] == "questions[0].choices"
    assert "30 options; model writer has labels of one token for at most 26" in refused["message"]


def test_a_question_that_does_not_fit_behind_the_input(chats):
    reason = "this model's context length is 9 tokens; prompts[1] has 12"
    refusal = Failed(0, "context_length_exceeded", reason, "prompts[1]")
    chats.engines["writer"].script.refusal = refusal
    error = chats.refusal(PATH, model="writer", input="a", questions=[LATE, LATE])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "questions[1]")
    assert error["message"].endswith("9 tokens; questions[1] behind input has 12")


@pytest.mark.parametrize(
    ("model", "given", "param", "reason"),
    [
        ("mistral", [said("assistant", "a")], "input", "Roles must alternate"),
        ("users only", [said("user", "a"), said("assistant", "b")], "input[1].role", "assistant"),
        ("users only", [said("system", "a"), said("user", "b")], "input[0].role", "system"),
        ("no question", "a", "model", "leaves out the text of a question"),
        ("writer", "a" * 4_000_000, "input", "characters"),
    ],
)
def test_what_a_template_refuses_is_named_as_the_request_names_it(
    chats, model, given, param, reason
):
    error = chats.refusal(PATH, model=model, input=given, questions=[LATE])
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert reason in error["message"]


def test_it_is_for_generators(deployment):
    refused = deployment.refusal(PATH, model="ranker", input="a", questions=[LATE])
    assert (refused["param"], refused["code"]) == ("model", "wrong_endpoint")
    decide(deployment, LATE, model=None)
