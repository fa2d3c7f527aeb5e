"""`/tokenize` and `/detokenize`: a model's tokenizer, without its engine's time."""

import asyncio

import numpy as np
from fastapi import APIRouter, Request, Response

from server.body import Body
from server.openapi import operation
from server.prompts import check_ids
from server.schemas.tokenize import DetokenizedText, DetokenizeRequest, TokenizeRequest, Tokens
from server.service import json_answer, service_of

router = APIRouter()
_tokenize_body = Body(TokenizeRequest)
_detokenize_body = Body(DetokenizeRequest)


@router.post("/tokenize", **operation(Tokens, TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """The token ids of a text."""
    service = service_of(request)
    body = await _tokenize_body.read(request, service.limits.max_body_bytes)
    model = service.find(body.model, "/tokenize")
    with service.admission.admit(rows=1, tokens=len(body.prompt.encode())):
        # In a thread: the tokenizer lets go of the interpreter, and a text may be long.
        (ids,) = await asyncio.to_thread(
            model.tokenizer.encode,
            [body.prompt],
            add_special_tokens=body.add_special_tokens is not False,
        )
    tokens = np.frombuffer(ids, np.int32).tolist()
    return json_answer(Tokens(count=len(tokens), max_model_len=model.max_model_len, tokens=tokens))


@router.post("/detokenize", **operation(DetokenizedText, DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    service = service_of(request)
    body = await _detokenize_body.read(request, service.limits.max_body_bytes)
    model = service.find(body.model, "/detokenize")
    check_ids(body.tokens, "tokens", model.vocab_size)
    with service.admission.admit(rows=1, tokens=len(body.tokens)):
        text = await asyncio.to_thread(
            model.tokenizer.decode, body.tokens, skip_special_tokens=False
        )
    return json_answer(DetokenizedText(text))
