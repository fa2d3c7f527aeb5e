"""The prompt before a text that is embedded, from those that its model declares."""

from collections.abc import Mapping

from server.errors import APIError
from server.schemas.embeddings import INPUT_TYPES
from server.service.registry import Model


def text_prompt(model: Model, prompt_name: str | None, input_type: str | None) -> str:
    """The prompt of this name or for this kind of text; without either the model's default.

    A kind for which the model has no prompt gets none. Raises APIError for an unknown name or
    kind, for both at once, and where the model's pooling leaves prompts out.
    """
    if prompt_name is not None and input_type is not None:
        message = "prompt_name and input_type: give only one of them"
        raise APIError("invalid_request", message, "prompt_name")
    declared = model.served.execution.model.embedding
    if prompt_name is not None:
        prompt = _named(model.name, declared.prompts, prompt_name)
    elif input_type is not None:
        prompt = _for_kind(declared.prompts, input_type)
    else:
        prompt = declared.prompts.get(declared.default_prompt_name or "", "")
    if prompt and not model.served.execution.model.pooling.include_prompt:
        field = "input_type" if input_type is not None else "prompt_name"
        message = f"{field}: model {model.name} pools without its prompts, which is not served"
        raise APIError("invalid_request", message, field)
    return prompt


def _named(model: str, prompts: Mapping[str, str], name: str) -> str:
    if name in prompts:
        return prompts[name]
    known = f"has {', '.join(prompts)}" if prompts else "has no prompts"
    message = f"prompt_name: there is no prompt {name!r}; model {model} {known}"
    raise APIError("invalid_request", message, "prompt_name")


def _for_kind(prompts: Mapping[str, str], input_type: str) -> str:
    if input_type not in INPUT_TYPES:
        message = f"input_type: {input_type!r} is not one of {', '.join(INPUT_TYPES)}"
        raise APIError("invalid_request", message, "input_type")
    names = (input_type, *INPUT_TYPES[input_type])
    return next((prompts[name] for name in names if name in prompts), "")
