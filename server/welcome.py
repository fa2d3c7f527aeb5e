"""What the daemon says on a terminal: what it starts, and how to try it once it is ready."""

import json
from collections.abc import Iterable

from engine_core.messages import Task
from engine_core.workflows import workflow_for
from server.configuration.config import API_KEY_VARIABLE, ServedModel, ServerConfig

_ENDPOINTS: dict[str, tuple[Task, dict[str, object]]] = {
    "/v1/completions": ("generate", {"prompt": "The Python interpreter", "max_tokens": 40}),
    "/v1/embeddings": ("embed", {"input": "The cat sat on the mat."}),
    "/v1/rerank": (
        "score",
        {
            "query": "What do pandas eat?",
            "documents": ["The giant panda lives on bamboo.", "Paris is the capital of France."],
        },
    ),
    "/embed_sparse": ("embed_sparse", {"inputs": "The cat sat on the mat."}),
}


def describe(model: ServedModel) -> str:
    """One line on how a model is about to run."""
    engine = model.engine
    return (
        f"{model.name}: {engine.model.architecture}, {engine.dtype} on {engine.device}, "
        f"{_count(engine.num_stages, 'stage')} of {_count(engine.threads, 'thread')}, "
        f"up to {engine.max_model_len:,} tokens"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def welcome(config: ServerConfig, seconds: float) -> str:
    """The ready message: the address, and a command to try for each endpoint that is served."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "http" if config.tls is None else "https"
    url = f"{scheme}://{host}:{config.port}"
    lines = [f"\npenstock is ready on {url} after {seconds:.1f} s. Try:"]
    for endpoint, (task, body) in _ENDPOINTS.items():
        name = _first_for(task, config.models)
        if name is not None:
            named = {"model": name} if endpoint.startswith("/v1/") else {}
            lines += ["", _curl(url + endpoint, named | body, config)]
    return "\n".join([*lines, ""])


def _first_for(task: Task, models: Iterable[ServedModel]) -> str | None:
    return next((model.name for model in models if task in _tasks(model)), None)


def _tasks(model: ServedModel) -> tuple[Task, ...]:
    return workflow_for(model.engine.model.architecture).tasks


def _curl(url: str, body: dict[str, object], config: ServerConfig) -> str:
    key = f' -H "Authorization: Bearer ${API_KEY_VARIABLE}"' if config.api_keys else ""
    quoted = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    return f"  curl -s {url} -H 'Content-Type: application/json'{key} \\\n    -d '{quoted}'"
