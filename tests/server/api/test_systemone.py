"""`/v1/systemone`: vLLM's form of the questions that `/v1/decisions` asks."""

import math
from typing import Any

import numpy as np
import pytest

from engine_core.messages import Failed
from tests.server.api.test_decisions import BEGUN, DIGIT, ENDED, LETTER, prompts
from tests.server.conftest import Deployment
from workers.contract.messages import LIKELIEST

PATH = "/v1/systemone"
JSON = dict[str, Any]
TEAM: JSON = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "money", "ships": None, "law": 3},
}
MONEY: JSON = {"type": "noul", "instructions": "Is money moving?"}
TONE: JSON = {
    "type": "score", "instructions": "How upset?", "criteria": ["calm", "annoyed", "furious"],
}  # fmt: skip


def ask(served: Deployment, model: str = "writer", state: object = "Text.", **body: Any) -> JSON:
    return served.ask(PATH, model=model, **{"state": state} | body)


def test_questions_are_those_of_decisions(chats, tokenizer):
    ask(chats, questions={"team": TEAM, "money": MONEY, "tone": TONE})
    job = chats.job("writer")
    assert prompts(job) == [
        f"{BEGUN}Text.\n\nWhich team?\n\nA. billing: money\nB. ships\nC. law: 3{LETTER}{ENDED}",
        f"{BEGUN}Text.\n\nIs money moving?\n\nA. true\nB. false{LETTER}{ENDED}",
        f"{BEGUN}Text.\n\nHow upset?\n\n0. calm\n1. annoyed\n2. furious{DIGIT}{ENDED}",
    ]
    assert {prompt[0] for prompt in job.prompts} == {0}
    labels = [np.frombuffer(ids, np.int32).tolist() for ids in job.tokens]
    assert [tokenizer.decode(ids[:-1]) for ids in labels] == ["ABC", "AB", "012"]
    assert {ids[-1] for ids in labels} == {LIKELIEST}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("", "<U>"),
        ("a", "<U>a\n\n"),
        ({"a": [1.5, None, "é\n"]}, '<U>{"a":[1.5,null,"é\\n"]}\n\n'),
        ([], "<U>[]\n\n"),
        (None, "<U>null\n\n"),
        (7, "<U>7\n\n"),
    ],
)
def test_a_state_is_text_or_json(chats, state, text):
    ask(chats, "turns", state, questions={"q": MONEY})
    assert chats.job("turns").pieces[0] == text


def test_instructions_are_a_system_message(chats):
    ask(chats, "turns", "a", questions={"q": {"type": "noul"}}, instructions="Be strict.")
    assert prompts(chats.job("turns")) == [
        f"<S>Be strict.<U>a\n\nA. true\nB. false{LETTER}<A>",
    ]


@pytest.mark.parametrize(
    ("criteria", "lines"),
    [
        (None, "A. true\nB. false"),
        ({}, "A. true\nB. false"),
        ({"true": "it is locked"}, "A. true: it is locked\nB. false"),
        ({"false": {"a": 1}, "true": None}, 'A. true\nB. false: {"a":1}'),
    ],
)
def test_a_noul_says_what_its_sides_mean(chats, criteria, lines):
    ask(chats, "turns", "a", questions={"q": MONEY | {"criteria": criteria}})
    assert prompts(chats.job("turns")) == [f"<U>a\n\nIs money moving?\n\n{lines}{LETTER}<A>"]


def test_answers(chats):
    chats.reset(chances=[math.log(chance) for chance in (0.1, 0.4, 0.3)])
    given = {"tone": TONE, "money": MONEY, "team": TEAM}
    body = ask(chats, questions=given)
    shares = [pytest.approx(each) for each in (0.125, 0.5, 0.375)]
    assert list(body["answers"]) == list(body["diagnostics"]) == list(given)
    assert body["answers"] == {
        "tone": {
            "type": "score",
            "score": pytest.approx(0.5 + 2 * 0.375),
            "legend": {"0": "calm", "1": "annoyed", "2": "furious"},
            "probabilities": dict(zip("012", shares, strict=True)),
            "confidence": pytest.approx(0.4),
        },
        "money": {
            "type": "noul",
            "noul": pytest.approx(0.2),
            "probabilities": {"yes": pytest.approx(0.2), "no": pytest.approx(0.8)},
            "confidence": pytest.approx(0.4),
        },
        "team": {
            "type": "choice",
            "choice": "ships",
            "probabilities": dict(zip(TEAM["criteria"], shares, strict=True)),
            "confidence": pytest.approx(0.4),
        },
    }
    assert body["answers"]["money"]["noul"] == body["answers"]["money"]["probabilities"]["yes"]
    masses = {name: each["label_mass"] for name, each in body["diagnostics"].items()}
    assert masses == pytest.approx({"tone": 0.8, "money": 0.5, "team": 0.8})
    assert body["id"].startswith("decision-")
    assert (body["object"], body["model"], body["joint"]) == ("structured_decision", "writer", None)
    assert body["created"] > 0
    assert body["usage"]["output_tokens"] == 3
    assert body["usage"]["input_tokens"] > 0
    assert set(body["usage"]) == {"input_tokens", "output_tokens"}


@pytest.mark.parametrize(("likeliest", "is_label"), [(0.4, True), (0.41, False), (0.2, True)])
def test_whether_the_likeliest_token_is_a_label(chats, likeliest, is_label):
    chats.reset(chances=[math.log(chance) for chance in (0.2, 0.4, 0.1, likeliest)])
    (found,) = ask(chats, questions={"team": TEAM})["diagnostics"].values()
    assert found == {"label_mass": pytest.approx(0.7), "argmax_is_label": is_label}


def test_one_option_has_the_confidence_of_its_label(chats):
    chats.reset(chances=[math.log(0.3)])
    body = ask(chats, questions={"coin": {"type": "choice", "criteria": {"heads": None}}})
    coin = body["answers"]["coin"]
    assert (coin["choice"], coin["probabilities"]) == ("heads", {"heads": 1.0})
    assert coin["confidence"] == body["diagnostics"]["coin"]["label_mass"] == pytest.approx(0.3)


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_thinking_is_refused(chats, name):
    body = {"model": "writer", "state": "a", "questions": {"q": MONEY}}
    refused = chats.refusal(PATH, **body, chat_template_kwargs={name: True})
    assert refused["param"] == f"chat_template_kwargs.{name}"
    assert "thinking must be off" in refused["message"]
    ask(chats, "chatml", questions={"q": MONEY}, chat_template_kwargs={name: False})
    assert chats.job("chatml").pieces[-1].endswith("<think></think>")


def test_the_most_questions_and_the_longest_state(chats):
    questions = {f"q{number}": MONEY for number in range(400)}
    state = {"a": ["b" * 1000] * 300, "c": [0] * 20_000}
    assert list(ask(chats, "turns", state, questions=questions)["answers"]) == list(questions)


def test_too_few_labels(chats):
    many = {"type": "choice", "criteria": dict.fromkeys(map(str, range(30)))}
    refused = chats.refusal(PATH, model="writer", state="a", questions={"a.b": many})
    assert refused["param"] == "questions.a.b.criteria"
    assert "30 options" in refused["message"]


def test_a_question_that_does_not_fit_behind_the_state(chats):
    reason = "this model's context length is 9 tokens; prompts[1] has 12"
    refusal = Failed(0, "context_length_exceeded", reason, "prompts[1]")
    chats.engines["writer"].script.refusal = refusal
    both = {"first": MONEY, "second": MONEY}
    fields = {"state": "a", "instructions": "b", "questions": both}
    error = chats.refusal(PATH, model="writer", **fields)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "questions.second")
    assert "questions.second behind instructions and state has 12" in error["message"]


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        ("users only", {"instructions": "a"}, "instructions.role"),
        ("writer", {"state": "a" * 4_000_000}, "state"),
        ("writer", {"questions": {"q": MONEY | {"instructions": "a" * 4_000_000}}}, "questions.q"),
    ],
)
def test_what_is_refused_later_is_named_as_the_request_names_it(chats, model, body, param):
    given = {"model": model, "state": "a", "questions": {"q": MONEY}} | body
    assert chats.refusal(PATH, **given)["param"] == param


def test_a_salt_parts_the_cache(chats):
    ask(chats, questions={"q": MONEY}, cache_salt="mine", priority=3)
    assert chats.job("writer").cache_salt.endswith("mine")
    assert chats.job("writer").priority == 3


def test_it_is_for_generators(deployment):
    body = {"state": "a", "questions": {"q": MONEY}}
    assert deployment.refusal(PATH, model="ranker", **body)["code"] == "wrong_endpoint"
