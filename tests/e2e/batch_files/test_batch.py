"""`penstock batch` with engines of its own, and with a daemon."""

from pathlib import Path
from typing import Any

from server.demo import EMBEDDER_NAME, GENERATOR_NAME
from tests.e2e.batch_files.batch_command import (
    completion,
    finished,
    read_lines,
    request,
    write_lines,
)
from tests.e2e.daemon import Daemon

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
RERANK, DECISIONS = "/v1/rerank", "/v1/decisions"
MESSAGES = [{"role": "user", "content": "Hello"}]
WET = {"type": "predicate", "instructions": "It is wet."}
LINES: list[object] = [
    *[completion(number, model=GENERATOR_NAME) for number in range(30)],
    request("chat", CHAT, model=GENERATOR_NAME, messages=MESSAGES, max_tokens=3),
    request("vectors", EMBEDDINGS, model=EMBEDDER_NAME, input=["a", "b"]),
    request("ranking", RERANK, query="panda", documents=["a panda", "a dam"]),
    request("decision", DECISIONS, input="It rains.", questions=[WET]),
    "nonsense",
    completion(5),
    request("other", "/v1/completions", model="gpt-5", prompt="a"),
    request("wrong", EMBEDDINGS, model=GENERATOR_NAME, input="a"),
    request("long", "/v1/completions", prompt="water " * 3_000),
    request("field", CHAT, messages=MESSAGES, max_tokens="many"),
    request("stream", CHAT, messages=MESSAGES, stream=True),
    request("two", "/v1/completions", prompt=["a", "b"], n=2, max_tokens=2, seed=1),
    request("cut", "/v1/completions", prompt="water " * 3_000, truncate_prompt_tokens=9),
    request("echo", "/v1/completions", prompt="The dam", echo=True, max_tokens=0),
    request("choice", CHAT, messages=MESSAGES, structured_outputs={"choice": ["yes", "no"]}),
]


def outcome(line: dict[str, Any]) -> object:
    """Its status, with an error the code; or the code of a line that was no request."""
    if line["error"] is not None:
        return line["error"]["code"]
    response = line["response"]
    error = response["body"].get("error")
    return response["status_code"] if error is None else (response["status_code"], error["code"])


def check(found: list[dict[str, Any]]) -> None:
    """Every line has its answer in its place."""
    given = [line["custom_id"] if isinstance(line, dict) else None for line in LINES]
    assert [line["custom_id"] for line in found] == given
    assert list(map(outcome, found)) == [
        *[200] * 34,
        "invalid_json_line",
        "duplicate_custom_id",
        (404, "model_not_found"),
        (400, "wrong_endpoint"),
        (400, "context_length_exceeded"),
        (400, "invalid_request"),
        "invalid_request",
        *[200] * 4,
    ]
    by_id: dict[Any, Any] = {line["custom_id"]: line["response"] for line in found}
    assert by_id["c0"]["request_id"].startswith("req-")
    assert by_id["chat"]["body"]["object"] == "chat.completion"
    assert [len(each["embedding"]) for each in by_id["vectors"]["body"]["data"]] == [384, 384]
    assert by_id["ranking"]["body"]["results"][0]["index"] == 0
    (answer,) = by_id["decision"]["body"]["answers"]
    assert 0 < answer["probability"] < 1
    assert by_id["field"]["body"]["error"]["param"] == "max_tokens"
    assert len(by_id["two"]["body"]["choices"]) == 4
    assert by_id["cut"]["body"]["usage"]["prompt_tokens"] == 9
    assert by_id["echo"]["body"]["choices"][0]["text"] == "The dam"
    assert by_id["choice"]["body"]["choices"][0]["message"]["content"] in ("yes", "no")


def test_answers_of_own_engines_are_those_of_a_daemon(tmp_path: Path, demo: Daemon) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", *LINES), tmp_path / "out.jsonl"
    texts: list[list[object]] = []
    for flags, sharing in (
        (["--threads", "1"], "by token"),
        (["--url", demo.url], "by whole blocks"),
    ):
        code, said, complained = finished(source, output, *flags)
        assert code == 0, complained
        assert f"{len(LINES)} requests (7 failed) in " in said
        assert sharing in said
        found: list[dict[str, Any]] = read_lines(output)
        check(found)
        texts.append([line["response"]["body"]["choices"][0] for line in found[:30]])
        assert sorted(file.name for file in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    assert texts[0] == texts[1]
