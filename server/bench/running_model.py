"""The model of a running server that is measured: its name, and words of one token each."""

from collections.abc import Sequence
from itertools import compress

import msgspec

from server.batches.http_client import HTTPClient
from server.bench.load import KindT, check_status, decoded
from server.bench.measurement import BenchError
from server.bench.words import common_words
from server.bench.workloads import HTTPCase
from server.event_loop import all_of

_ASKED_AT_ONCE = 64


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Answer(msgspec.Struct):
    model: str


class _Tokens(msgspec.Struct):
    count: int


async def only_model(client: HTTPClient, case: HTTPCase) -> str:
    """The only model that the server lists, or else the one that it takes for `case` if none is
    named. Raises BenchError: where several would do, penstock's own words name them."""
    listed = (await _asked(client, "--model", "/v1/models", _Models)).data
    if len(listed) == 1:
        return listed[0].id
    return (await _asked(client, "--model", case.path, _Answer, {case.field: "a"})).model


async def single_token_words(client: HTTPClient, model: str) -> Sequence[str]:
    """The common words that are one token each behind a space, by the server's `/tokenize` as
    penstock and vLLM have it. Raises BenchError."""

    async def is_single(word: str) -> bool:
        body = {"model": model, "prompt": f" {word}", "add_special_tokens": False}
        return (await _asked(client, "--tokenizer", "/tokenize", _Tokens, body)).count == 1

    words, single = common_words(), list[str]()
    for start in range(0, len(words), _ASKED_AT_ONCE):
        some = words[start : start + _ASKED_AT_ONCE]
        single += compress(some, await all_of(map(is_single, some), BenchError))
    if not single:
        raise BenchError(f"no common lower-case word is one token of {model}")
    return single


async def _asked(
    client: HTTPClient, flag: str, path: str, kind: type[KindT], body: object = None
) -> KindT:
    """The server's answer to what a `flag` was not given for. Raises BenchError, naming both."""
    address, method = client.address, "GET" if body is None else "POST"
    try:
        answer = await client.exchange(address.request(method, path, body))
        check_status(answer)
        return decoded(answer.body, kind)
    except (OSError, BenchError) as error:
        where = f"http://{address.host}:{address.port}{path}"
        raise BenchError(f"{where}: {error} (asked as {flag} is not given)") from None
