"""Messages on a terminal: which models the daemon starts, and how to try it once it is ready."""

import json
from pathlib import Path

from server.settings.settings import API_KEY_VARIABLE, ServedModel, ServerConfig
from server.templates.template_files import NoChatTemplateError, read_chat_template
from workers.contract.config import Task

_EXAMPLES: dict[str, tuple[tuple[Task, ...], dict[str, object]]] = {
    "/v1/completions": (("generate",), {"prompt": "The Python interpreter", "max_tokens": 40}),
    "/v1/chat/completions": (
        ("generate",),
        {"messages": [{"role": "user", "content": "Tell me about files."}]},
    ),
    "/v1/embeddings": (("embed",), {"input": "The cat sat on the mat."}),
    "/v1/rerank": (
        ("embed", "embed_tokens", "classify", "rerank"),
        {
            "query": "What do pandas eat?",
            "documents": ["The giant panda lives on bamboo.", "Paris is the capital of France."],
        },
    ),
    "/embed_sparse": (("embed_sparse",), {"inputs": "The cat sat on the mat."}),
}


def describe(model: ServedModel) -> str:
    execution = model.execution
    used = [device for engine in model.engines for device in engine.execution.devices]
    first, last = used[0], used[-1]
    between = "and" if len(set(used)) == 2 else "to"
    devices = first if first == last else f"{first} {between} {last}"
    if execution.nodes:
        devices += f" of {execution.nodes[-1] + 1} nodes"
    stages = f"{_amount(execution.num_stages, 'stage')} of {_amount(execution.threads, 'thread')}"
    if execution.stage_layers:
        stages += f" with {','.join(map(str, execution.stage_layers))} layers"
    if model.copies:
        stages = f"{len(model.engines)} copies of {stages}"
    part = " (its language model: text only)" if execution.model.wrapped else ""
    cache = " with keys and values in FP8" if execution.cache_dtype == "fp8_e4m3" else ""
    return (
        f"{model.name}: {execution.model.architecture}{part}, {execution.dtype}{cache} on "
        f"{devices}, {stages}, up to {execution.max_model_len:,} tokens"
    )


def _amount(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def welcome(config: ServerConfig, seconds: float) -> str:
    """The ready message: the daemon's addresses, and a command to try for each endpoint."""
    url = config.url
    documentation = f"Documentation of every endpoint, to read and to try: {url}/docs"
    lines = [
        f"\npenstock is ready on {url} after {seconds:.1f} s.",
        f"What it does, and a box to try it, in a browser: {url}/",
        *([] if config.api_keys else [documentation]),  # keys, which a browser does not send
        "From a shell:",
    ]
    for endpoint, (tasks, body) in _EXAMPLES.items():
        name = next((m.name for m in config.models if _serves(m, endpoint, tasks)), None)
        if name is not None:
            named = {"model": name} if endpoint.startswith("/v1/") else {}
            lines += ["", _curl(url + endpoint, named | body, config)]
    return "\n".join([*lines, ""])


def _serves(model: ServedModel, endpoint: str, tasks: tuple[Task, ...]) -> bool:
    if endpoint == "/v1/rerank" and not model.execution.scores_relevance:
        return False
    if endpoint == "/v1/chat/completions" and model.execution.task in tasks:
        try:
            read_chat_template(Path(model.path))
        except NoChatTemplateError:
            return False
    return model.execution.task in tasks


def _curl(url: str, body: dict[str, object], config: ServerConfig) -> str:
    key = f' -H "Authorization: Bearer ${API_KEY_VARIABLE}"' if config.api_keys else ""
    quoted = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    return f"  curl -s {url} -H 'Content-Type: application/json'{key} \\\n    -d '{quoted}'"
