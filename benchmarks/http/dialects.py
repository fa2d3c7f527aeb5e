"""A streamed token of `/v1/responses` and `/v1/messages` beside one of a chat, in CPU time.

Three API processes stand side by side, one for each, and change places after each round: what
disturbs one of them disturbs all. Each has a fake engine of its own.
"""

import re
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median

from benchmarks.daemon.process_stats import cpu_seconds
from benchmarks.http import wrk
from benchmarks.http.api_processes import TEXT, APIProcesses, Endpoint, running_api_processes
from benchmarks.report import Budget, Figure

_TIMES_CHAT = 1.1
_ROUNDS, _SECONDS = 12, 2
_STREAMS, _TOKENS = 16, 512
_COMMON = {"model": "paced", "stream": True}
_CONVERSATION = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": _TOKENS}
_CHAT = "/v1/chat/completions"
_BODIES: Mapping[str, Mapping[str, object]] = {
    _CHAT: _COMMON | _CONVERSATION,
    "/v1/responses": _COMMON | {"input": TEXT, "max_output_tokens": _TOKENS},
    "/v1/messages": _COMMON | _CONVERSATION,
}


def dialect_figures(generator: Endpoint) -> list[Figure]:
    """The cost of a chat's token, and those of the others as multiples of it."""
    costs: dict[str, list[float]] = {path: [] for path in _BODIES}
    with ExitStack() as running, ThreadPoolExecutor(len(_BODIES)) as pool:
        apis = [running.enter_context(running_api_processes({"paced": generator})) for _ in _BODIES]
        for _ in range(_ROUNDS):
            for path, cost in zip(_BODIES, pool.map(_token_us, apis, _BODIES), strict=True):
                costs[path].append(cost)
            apis = [*apis[1:], apis[0]]
    note = f"{_STREAMS} streams of {_TOKENS} tokens, one each {generator.step_ms} ms"
    figures = [Figure("a chat's streamed token, CPU time", median(costs[_CHAT]), "µs", None, note)]
    for path in list(_BODIES)[1:]:
        pairs = zip(costs[path], costs[_CHAT], strict=True)
        ratios = sorted(own / chat for own, chat in pairs)
        note = f"median of {', '.join(f'{ratio:.2f}' for ratio in ratios)}"
        name = f"{path}: a token's CPU time to a chat's"
        figures.append(Figure(name, median(ratios), "x", Budget(_TIMES_CHAT), note))
    return figures


def _token_us(api: APIProcesses, path: str) -> float:
    """CPU time of the API process for a streamed token, in µs. The last streams are cut off."""
    (pid,) = api.pids
    tokens, used = _generated_tokens(api.url), cpu_seconds(pid)
    wrk.post(f"{api.url}{path}", _BODIES[path], connections=_STREAMS, seconds=_SECONDS)
    used = cpu_seconds(pid) - used
    return used * 1e6 / (_generated_tokens(api.url) - tokens)


def _generated_tokens(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    counts = re.findall(r"^penstock_generated_tokens_total{.*} (\S+)$", text, re.MULTILINE)
    return sum(map(float, counts))
