"""`/tokenizer_info`: a tokenizer's configuration, as vLLM has it."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from fastapi import Request

from engine_core.refusal import RefusalError
from server.api.declaration import answers
from server.api.tokenize import detokenize
from server.service.endpoint import Endpoint
from server.service.service import record_of, service_of
from workers.contract.checkpoint.folder_files import optional


class TokenizerInfoQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The model whose tokenizer is meant."""

    model: str | None = None
    """A name of the model; without it the only one."""


@answers(Endpoint("GET", "/tokenizer_info", "Jina, vLLM", order=212))
async def tokenizer_info(request: Request, query: TokenizerInfoQuery) -> dict[str, Any]:
    """The configuration of a model's tokenizer, and its chat template."""
    model = service_of(request).find(record_of(request), query.model, detokenize)
    path = Path(model.served.path)
    found = await asyncio.to_thread(optional, path, "tokenizer_config.json", dict[str, Any])
    # Files are places on the machine on which the tokenizer was saved.
    info = {key: value for key, value in (found or {}).items() if not key.endswith("_file")}
    # What transformers takes where no class is named.
    info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    with suppress(RefusalError):  # without a template that works
        info["chat_template"] = model.chat.template.source
    return info
