"""The requests of a job, checked as the HTTP API checks them, and their results."""

import json
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from engine_core.refusal import RefusalError
from server.batches.results import Generated, RequestError
from server.http.body import Body
from server.schemas.common import CompletionUsage
from server.schemas.completions import CompletionChoice, CompletionRequest

Prompt = str | Sequence[int]
"""A text, or its token ids."""
Options = Mapping[str, object]
"""Fields of a request by their names in the HTTP API."""

_body = Body(CompletionRequest)
_NONE: Options = {}
_OWN = frozenset({"prompt", "model", "return_token_ids"})
_ONLINE = frozenset({"stream", "stream_options", "timeout", "priority", "session_id", "user"})
SAMPLING_OPTIONS = frozenset(CompletionRequest.__struct_fields__) - _OWN - _ONLINE


def completion_request(prompt: Prompt, options: Options) -> CompletionRequest:
    """Raises RequestError."""
    check_options(options, SAMPLING_OPTIONS)
    checked = _prompt(prompt)
    try:
        # As JSON, because schemas stay undecoded. The prompt is long, and need not be.
        fields = json.dumps({**options, "prompt": "", "return_token_ids": True}, allow_nan=False)
        request = _body.decode(fields.encode(), strictly=True)
    except (TypeError, ValueError) as error:
        raise RequestError("invalid_request", str(error)) from None
    except RefusalError as error:
        raise RequestError(error.code, error.message, error.param) from None
    return msgspec.structs.replace(request, prompt=checked)


def check_options(options: Options, known: frozenset[str]) -> None:
    """Raises RequestError for a name that is not among `known`."""
    if unknown := sorted(options.keys() - known):
        names = ", ".join(sorted(known))
        message = f"{unknown[0]}: there is no such option here; there are {names}"
        raise RequestError("invalid_request", message, unknown[0])


def completion_requests(
    prompts: Sequence[Prompt], sampling: Options | Sequence[Options], common: Options
) -> list[CompletionRequest | RequestError]:
    """A request for each prompt, by `common` and `sampling`, which may be one for each of them.

    Raises ValueError for options that are wrong for all, before any work.
    """
    if isinstance(sampling, Mapping):
        common, each = {**common, **sampling}, [_NONE] * len(prompts)
    else:
        each = sampling
    if isinstance(wrong := _request("", common), RequestError):
        raise ValueError(wrong.message)
    if len(each) != len(prompts):
        raise ValueError(f"sampling: {len(each)} for {len(prompts)} prompts; give one, or one each")
    return [_request(prompt, {**common, **own}) for prompt, own in zip(prompts, each, strict=True)]


def _request(prompt: Prompt, options: Options) -> CompletionRequest | RequestError:
    try:
        return completion_request(prompt, options)
    except RequestError as error:
        return error


def generated(choices: list[CompletionChoice], usage: CompletionUsage) -> Generated:
    """A result, without the ids of its prompt."""
    own = [msgspec.structs.replace(choice, prompt_token_ids=UNSET) for choice in choices]
    return Generated(choices=own, usage=usage)


def _prompt(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    try:
        return msgspec.convert(plain_ids(prompt), list[int])
    except (TypeError, msgspec.ValidationError):
        message = "prompt: a text or token ids; conversations are rendered before"
        raise RequestError("invalid_request", message, "prompt") from None


def plain_ids(ids: Sequence[int]) -> list[int]:
    """Token ids, which may come in an array, as a list of Python's numbers."""
    return ids.tolist() if isinstance(ids, np.ndarray) else [*ids]
