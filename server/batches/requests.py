"""Requests from Python as lines: checked as the HTTP API checks them."""

import json
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from engine_core.refusal import RefusalError
from server.batches.answering import NOT_OURS, Answer, Line, error_of
from server.batches.results import JobStoppedError, RequestError
from server.http.body import Body
from server.schemas.completions import CompletionRequest
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.rerank import RerankRequest

Prompt = str | Sequence[int]
"""A text, or its token ids."""
Options = Mapping[str, object]
"""Fields of a request by their names in the HTTP API."""

_COMPLETIONS = "/v1/completions"
_NO_OPTIONS = {
    *("model", "prompt", "return_token_ids", "input", "query", "documents"),
    *("encoding_format", "embed_dtype", "output_dtype"),
    *("stream", "stream_options", "timeout", "priority", "session_id", "user"),
}
_OPTIONS = {
    url: frozenset(struct.__struct_fields__) - _NO_OPTIONS
    for url, struct in (
        (_COMPLETIONS, CompletionRequest),
        ("/v1/embeddings", EmbeddingRequest),
        ("/v1/rerank", RerankRequest),
    )
}
_OF_ALL = frozenset({NOT_OURS, "not_found", "model_not_found", "model_required", "wrong_endpoint"})
_body = Body(CompletionRequest)
_NONE: Options = {}


def completion_lines(
    named: Options,
    prompts: Sequence[Prompt],
    sampling: Options | Sequence[Options],
    common: Options,
) -> list[Line | RequestError]:
    """A line for each prompt, with the fields `named`, and those of `common` and `sampling`.

    `sampling` may be one for all prompts, or one for each.

    Raises ValueError for options that are wrong for all, before any work.
    """
    if isinstance(sampling, Mapping):
        of_all, each = {**common, **sampling}, [_NONE] * len(prompts)
    else:
        of_all, each = common, sampling
    check_options(_COMPLETIONS, of_all)
    if len(each) != len(prompts):
        given, wanted = len(each), len(prompts)
        raise ValueError(f"sampling: {given} for {wanted} prompts; give one, or one each")
    return [
        _completion(index, named, prompt, of_all, own)
        for index, (prompt, own) in enumerate(zip(prompts, each, strict=True))
    ]


def _completion(
    index: int, named: Options, prompt: Prompt, of_all: Options, own: Options
) -> Line | RequestError:
    """`own` options are checked here, those of all before."""
    options = {**of_all, **own}
    try:
        if own:
            _check(_COMPLETIONS, options)
        fields = {**named, "prompt": plain("prompt", prompt), **options, "return_token_ids": True}
        return line_of(index, _COMPLETIONS, fields)
    except RequestError as error:
        return error


def check_options(url: str, options: Options) -> Options:
    """The options of a job for `url`. Raises ValueError for one that is unknown or no JSON, and for
    a wrong one of completions."""
    try:
        _check(url, options)
    except RequestError as error:
        raise ValueError(error.message) from None
    return options


def _check(url: str, options: Options) -> None:
    """Raises RequestError as `check_options` raises ValueError. The prompt, which may be long, is
    checked by whoever answers."""
    known = _OPTIONS[url]
    if unknown := sorted(options.keys() - known):
        names = ", ".join(sorted(known))
        message = f"{unknown[0]}: there is no such option here; there are {names}"
        raise RequestError("invalid_request", message, unknown[0])
    line = line_of(0, url, {**options, "prompt": ""})
    if url == _COMPLETIONS:
        try:
            _body.decode(line.body, strictly=True)
        except RefusalError as error:
            raise RequestError(error.code, error.message, error.param) from None


def line_of(index: int, url: str, fields: Options) -> Line:
    """A line with this body. Raises RequestError for what is no JSON."""
    try:
        return Line(index, "", url, json.dumps(fields, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise RequestError("invalid_request", str(error)) from None


def plain(field: str, prompt: Prompt) -> str | list[int]:
    """A text, or token ids, which may come in an array, as Python's numbers. Raises
    RequestError."""
    if isinstance(prompt, str):
        return prompt
    try:
        ids = prompt.tolist() if isinstance(prompt, np.ndarray) else [*prompt]
        return msgspec.convert(ids, list[int])
    except (TypeError, msgspec.ValidationError):
        message = f"{field}: a text or token ids; conversations are rendered before"
        raise RequestError("invalid_request", message, field) from None


def refusal(answer: Answer) -> RequestError:
    """The error in an answer that is not good. Raises JobStoppedError for what every other request
    for this model would get, too."""
    error = error_of(answer)
    if error.code in _OF_ALL:
        raise JobStoppedError(f"{error.message} ({error.code})")
    return RequestError(error.code, error.message, error.param)
