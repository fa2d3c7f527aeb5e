"""Reads the answers of an HTTP case: complete or not, how many tokens, when they arrived."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeVar

import msgspec

from server.bench.cases.workloads import HTTPCase, HTTPEmbeddingCase, HTTPGenerationCase
from server.bench.load.http_client import Answer

_OK = 200
_CHUNK_MARK = b'"text":'
_DATA, _DONE = b"data: ", b"data: [DONE]"
_SHOWN = 200
_MOST_SPECIAL = 2
"""Special tokens that a server may put around a text."""

_KindT = TypeVar("_KindT", bound=msgspec.Struct)


class WrongAnswerError(Exception):
    """An answer other than requested; one line says how."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A good answer. Times in seconds from the request; `arrivals` has one for each piece of a
    stream's text."""

    latency: float
    arrivals: list[float] = []
    sequences: int = 1
    prompt_tokens: int
    output_tokens: int = 0

    @property
    def time_per_token(self) -> float:
        """Seconds for each token after the first piece of text."""
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)

    def gaps(self) -> list[float]:
        """Seconds between the pieces of a stream."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    usage: _Usage | None = None
    error: msgspec.Raw | None = None


class _Vectors(msgspec.Struct):
    data: list[msgspec.Raw]
    usage: _Usage


def outcome_of(answer: Answer, case: HTTPCase) -> Outcome:
    """Read and check an answer of `case`. Raises WrongAnswerError."""
    return _vectors(answer, case) if isinstance(case, HTTPEmbeddingCase) else _stream(answer, case)


def _vectors(answer: Answer, case: HTTPEmbeddingCase) -> Outcome:
    vectors = _decoded(_body(answer), _Vectors)
    if len(vectors.data) != case.texts:
        raise WrongAnswerError(f"{len(vectors.data)} vectors for {case.texts} texts")
    _check_prompt(vectors.usage.prompt_tokens, case.texts, case.tokens)
    return Outcome(
        latency=answer.ended - answer.sent,
        sequences=case.texts,
        prompt_tokens=vectors.usage.prompt_tokens,
    )


def _stream(answer: Answer, case: HTTPGenerationCase) -> Outcome:
    usage = None
    for chunk in _chunks(_body(answer)):
        if chunk.error is not None:
            raise WrongAnswerError(f"an error within the stream: {bytes(chunk.error).decode()}")
        usage = chunk.usage or usage
    if usage is None:
        raise WrongAnswerError("a stream without usage")
    if usage.completion_tokens != case.outputs:
        raise WrongAnswerError(f"{usage.completion_tokens} tokens instead of {case.outputs}")
    _check_prompt(usage.prompt_tokens, 1, case.prompt_tokens)
    arrivals = [at - answer.sent for at, data in answer.pieces if _CHUNK_MARK in data]
    if not arrivals:
        raise WrongAnswerError("a stream without text")
    return Outcome(
        latency=arrivals[-1],
        arrivals=arrivals,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=case.outputs,
    )


def _check_prompt(counted: int, texts: int, tokens: int) -> None:
    if not texts * tokens <= counted <= texts * (tokens + _MOST_SPECIAL):
        raise WrongAnswerError(
            f"the server counts {counted} tokens in {texts} x {tokens}: --tokenizer must be its own"
        )


def _body(answer: Answer) -> bytes:
    if answer.status != _OK:
        text = answer.body[:_SHOWN].decode("utf-8", "replace")
        raise WrongAnswerError(f"status {answer.status}: {text}")
    return answer.body


def _chunks(body: bytes) -> Iterator[_Chunk]:
    """The events of a stream. Raises WrongAnswerError if it is cut short."""
    *events, rest = body.split(b"\n\n")
    if rest or not events or events[-1] != _DONE:
        raise WrongAnswerError("the stream ends without data: [DONE]")
    for event in events[:-1]:
        yield _decoded(event.removeprefix(_DATA), _Chunk)


def _decoded(data: bytes, kind: type[_KindT]) -> _KindT:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        shown = data[:_SHOWN].decode("utf-8", "replace")
        raise WrongAnswerError(f"an answer that cannot be read ({error}): {shown}") from None
