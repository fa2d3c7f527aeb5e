"""Decisions of a real model: what an answer depends on, and that it is transformers' own."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon

JSON = dict[str, Any]
PATH = "/v1/decisions"
INPUT = "The function opens a file, reads each line and returns a list of strings. " * 12
TEAMS = ["billing", "delivery", "returns"]
LEVELS = ["calm", "cross", "furious", "beside himself"]
QUESTIONS: list[JSON] = [
    {"type": "predicate", "instructions": "The function returns a list."},
    {"type": "choice", "instructions": "Which team is asked?",
     "choices": [{"value": team} for team in TEAMS]},
    {"type": "score", "instructions": "How angry is it?",
     "levels": [{"label": level} for level in LEVELS]},
]  # fmt: skip
LETTER = "\n\nAnswer with only the letter of the option that fits best."
DIGIT = "\n\nAnswer with only the number of the level that fits best."
TEXTS = [
    f"The function returns a list.\n\nA. true\nB. false{LETTER}",
    f"Which team is asked?\n\nA. billing\nB. delivery\nC. returns{LETTER}",
    f"How angry is it?\n\n0. calm\n1. cross\n2. furious\n3. beside himself{DIGIT}",
]
LABELS = ["AB", "ABC", "0123"]


def numbers(daemon: Daemon, *questions: JSON, given: str = INPUT, **fields: Any) -> list[float]:
    """All numbers of the answers, in their order."""
    answers = daemon.ask(PATH, input=given, questions=questions, **fields)["answers"]
    return [number for answer in answers for number in numbers_of(answer)]


def numbers_of(answer: JSON) -> list[float]:
    shares = [each["probability"] for each in answer.get("probabilities", [])]
    return [answer[name] for name in ("probability", "confidence") if name in answer] + shares


@pytest.fixture(scope="module", params=["demo", "pipeline"])
def daemon(request: pytest.FixtureRequest) -> Daemon:
    """A daemon with the demo models, in one stage and in two."""
    return request.getfixturevalue(request.param)


@cache
def expected() -> list[float]:
    """What transformers makes of the same ids."""
    folder = demo_models()[GENERATOR_NAME]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    found: list[float] = []
    for text, labels in zip(TEXTS, LABELS, strict=True):
        pieces = [f"<|bos|><|user|>{INPUT.strip()} \n\n", text, "<|end|><|assistant|>"]
        prompt = torch.tensor([[token for piece in pieces for token in ids(piece)]])
        with torch.no_grad():
            chances = model(prompt).logits[0, -1].float().softmax(0)
        own = chances[[token for label in labels for token in ids(label)]]
        shares = (own / own.sum()).tolist()
        found += shares[:1] if labels == "AB" else [own.max().item(), *shares]
    return found


def test_answers_are_those_of_transformers(daemon):
    assert numbers(daemon, *QUESTIONS) == pytest.approx(expected(), abs=1e-4)


@pytest.mark.parametrize("salt", ["first", "second"])
def test_an_answer_depends_on_no_other_question_nor_their_order(daemon, salt):
    together = numbers(daemon, *QUESTIONS, cache_salt=salt)
    alone = [number for each in QUESTIONS for number in numbers(daemon, each, cache_salt=f"{each}")]
    turned = daemon.ask(PATH, input=INPUT, questions=QUESTIONS[::-1], cache_salt=f"{salt} turned")
    many = numbers(daemon, *QUESTIONS, *[QUESTIONS[0]] * 397)
    assert alone == pytest.approx(together, abs=1e-5)
    assert many[: len(together)] == pytest.approx(together, abs=1e-5)
    again = [number for answer in turned["answers"][::-1] for number in numbers_of(answer)]
    assert again == pytest.approx(together, abs=1e-5)


def test_an_answer_depends_neither_on_the_cache_nor_on_what_runs_beside_it(daemon):
    first = numbers(daemon, *QUESTIONS, prompt_cache_key="mine")
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(numbers, daemon, *QUESTIONS, prompt_cache_key=key)
            for key in ("mine", "yours", "theirs") * 4
        ]
        others = [pool.submit(numbers, daemon, *QUESTIONS, given=f"{n}") for n in range(8)]
        for each in asked:
            assert each.result() == pytest.approx(first, abs=1e-5)
        assert len({tuple(each.result()) for each in others}) == 8


def test_the_input_is_computed_once(daemon):
    def usage(*questions: JSON) -> JSON:
        key = "test_the_input_is_computed_once"
        asked = {"input": INPUT, "questions": questions, "prompt_cache_key": key}
        return daemon.ask(PATH, **asked)["usage"]

    first, again, one = usage(*QUESTIONS), usage(*QUESTIONS), usage(QUESTIONS[1])
    written = first["input_tokens_details"]["cache_write_tokens"]
    assert first["input_tokens_details"]["cached_tokens"] == 0
    assert again["input_tokens_details"] == {"cached_tokens": written, "cache_write_tokens": 0}
    assert again["input_tokens"] == first["input_tokens"]
    assert written < one["input_tokens"] < first["input_tokens"] < 3 * written


def test_a_question_that_does_not_fit_behind_the_input_is_named(daemon):
    long = QUESTIONS[0] | {"instructions": "word " * 900}
    body = {"model": GENERATOR_NAME, "input": INPUT, "questions": [*QUESTIONS, long]}
    error = httpx.post(f"{daemon.url}{PATH}", json=body).json()["error"]
    assert (error["param"], error["code"]) == ("questions[3]", "context_length_exceeded")
    assert "context length is 1024 tokens; questions[3] behind input has" in error["message"]
