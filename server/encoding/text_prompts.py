"""The prompt before a text that is embedded, from those that its model declares."""

from collections.abc import Mapping

import msgspec

from engine_core.messages import Tokenization
from engine_core.refusal import RefusalError
from server.errors import quoted
from server.schemas.embeddings import INPUT_TYPES
from server.service.service import Model


def text_prompt(model: Model, prompt_name: str | None, input_type: str | None) -> str:
    """The prompt of this name or for this kind of text; without either the model's default.

    A kind for which the model has no prompt gets none. Raises RefusalError for an unknown name or
    kind, and for both at once.
    """
    if prompt_name is not None and input_type is not None:
        message = "prompt_name and input_type: give only one of them"
        raise RefusalError("invalid_request", message, "prompt_name")
    declared = model.served.execution.model.embedding
    if prompt_name is not None:
        return _named(model.name, declared.prompts, prompt_name)
    if input_type is not None:
        return _for_kind(declared.prompts, input_type)
    return declared.prompts.get(declared.default_prompt_name or "", "")


def behind_prompt(tokenization: Tokenization, model: Model, prompt: str) -> Tokenization:
    """That of texts behind `prompt`, which the model's pooling may leave out.

    Raises RefusalError where such texts are to be cut on the left: little of the prompt would be
    left.
    """
    if not prompt or model.served.execution.model.pooling.include_prompt:
        return tokenization
    if tokenization.truncate_to is not None and tokenization.truncation_side == "left":
        message = f"truncation_side: model {model.name} does not pool its prompts, which stay whole"
        raise RefusalError("invalid_request", message, "truncation_side")
    unpooled = _prompt_tokens(model, prompt, add_special_tokens=tokenization.add_special_tokens)
    return msgspec.structs.replace(tokenization, unpooled=unpooled)


def _prompt_tokens(model: Model, prompt: str, *, add_special_tokens: bool) -> int:
    """The prompt's own, but for a special one at its end: sentence-transformers' rule."""
    (encoding,) = model.tokenizer.encodings([prompt], add_special_tokens=add_special_tokens)
    return len(encoding.ids) - sum(encoding.special_tokens_mask[-1:])


def _named(model: str, prompts: Mapping[str, str], name: str) -> str:
    if name in prompts:
        return prompts[name]
    known = f"has {', '.join(prompts)}" if prompts else "has no prompts"
    message = f"prompt_name: there is no prompt {quoted(name)}; model {model} {known}"
    raise RefusalError("invalid_request", message, "prompt_name")


def _for_kind(prompts: Mapping[str, str], input_type: str) -> str:
    if input_type not in INPUT_TYPES:
        message = f"input_type: {quoted(input_type)} is not one of {', '.join(INPUT_TYPES)}"
        raise RefusalError("invalid_request", message, "input_type")
    names = (input_type, *INPUT_TYPES[input_type])
    return next((prompts[name] for name in names if name in prompts), "")
