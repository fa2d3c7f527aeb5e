"""Requests from Python as lines: checked as the HTTP API checks them."""

import json
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from engine_core.refusal import RefusalError
from server.batches.answering import NOT_OURS, error_of
from server.batches.base import Answer, Line
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
_NOTHING: Options = {}
_body = Body(CompletionRequest)


def completion_lines(
    named: Options,
    prompts: Sequence[Prompt],
    sampling: Options | Sequence[Options],
    common: Options,
) -> list[Line | RequestError]:
    """A line for each prompt, with the fields `named` and by `common` and `sampling`, which may be
    one for each of them.

    Raises ValueError for options that are wrong for all, before any work.
    """
    if isinstance(sampling, Mapping):
        common, each = {**common, **sampling}, [_NOTHING] * len(prompts)
    else:
        each = sampling
    if isinstance(wrong := _completion(0, named, "", common), RequestError):
        raise ValueError(wrong.message)
    if len(each) != len(prompts):
        raise ValueError(f"sampling: {len(each)} for {len(prompts)} prompts; give one, or one each")
    return [
        _completion(index, named, prompt, {**common, **own})
        for index, (prompt, own) in enumerate(zip(prompts, each, strict=True))
    ]


def _completion(
    index: int, named: Options, prompt: Prompt, options: Options
) -> Line | RequestError:
    others = {**options, "return_token_ids": True}
    try:
        _check_names(_COMPLETIONS, options)
        # The prompt is long, and is checked by whoever answers.
        _body.decode(line_of(0, "", {"prompt": "", **others}).body, strictly=True)
        fields = {**named, "prompt": plain("prompt", prompt), **others}
        return line_of(index, _COMPLETIONS, fields)
    except RefusalError as error:
        return RequestError(error.code, error.message, error.param)
    except RequestError as error:
        return error


def check_options(url: str, options: Options) -> Options:
    """The options of a job for `url`. Raises ValueError for an unknown one, and for what is no
    JSON."""
    try:
        _check_names(url, options)
        line_of(0, url, options)
    except RequestError as error:
        raise ValueError(error.message) from None
    return options


def _check_names(url: str, options: Options) -> None:
    """Raises RequestError for a name that is not among those of a job for `url`."""
    known = _OPTIONS[url]
    if unknown := sorted(options.keys() - known):
        names = ", ".join(sorted(known))
        message = f"{unknown[0]}: there is no such option here; there are {names}"
        raise RequestError("invalid_request", message, unknown[0])


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
