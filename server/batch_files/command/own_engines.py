"""Engines that are started for a job, and what of them its results depend on."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from server.batches.engine_backend import EngineBackend, engine_backend
from server.daemon.parts import engine_parts
from server.daemon.run import START_SECONDS, announce, private_folder, running_parts
from server.models.model_source import model_folder
from server.models.served_models import build_served_models
from server.settings.settings import ModelSettings, ServeCommand, flag_name, unattended
from workers.contract.checkpoint.folder_files import TOKENIZER_BYTES, read_bytes

_OF_RESULTS = ("names", "task", "max_model_len", "dtype", "load_format", "rerank")
_WEIGHTS = ("*.safetensors", "*.bin")


@asynccontextmanager
async def own_engines(command: ServeCommand) -> AsyncGenerator[EngineBackend]:
    """An engine for each model of `command`, until the block ends.

    Raises one of `server.daemon.daemon.START_ERRORS`.
    """
    # Whoever submits all work at once expects it to wait.
    settings = msgspec.structs.replace(command.settings, max_queue_seconds=0, log_level="warning")
    with private_folder() as (folder, announcement):
        models = build_served_models(settings, command.setting_names, folder)
        config = unattended(settings, models)
        async with running_parts(engine_parts(models, folder)) as parts, AsyncExitStack() as stack:
            ready = stack.enter_async_context(engine_backend(config))
            backend = await parts.until(ready, START_SECONDS)
            announce(announcement, models)
            yield backend


def result_options(command: ServeCommand) -> dict[str, str]:
    """What results depend on besides the requests: the models, and those of their settings that
    change results. Models of the hub are downloaded. Raises ModelSourceError."""
    options: dict[str, str] = {}
    for index, model in enumerate(command.settings.models):
        suffix = f" of model {index + 1}" if index else ""
        options[f"the model{suffix}"] = f"{model.model} ({_contents(model)})"
        for key in _OF_RESULTS:
            options[f"{flag_name(key)}{suffix}"] = str(getattr(model, key))
    return options


def _contents(model: ModelSettings) -> str:
    """A digest of a checkpoint's configuration, and of the names and sizes of its weights."""
    folder = model_folder(model.model, model.load_format)
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(folder.glob("*.json")):
        content = read_bytes(folder, file.name, TOKENIZER_BYTES)
        digest.update(file.name.encode() + content)
    for file in sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
    return digest.hexdigest()
