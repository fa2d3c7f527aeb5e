"""`truncate_prompt_tokens`: the length to which a request's prompts or texts are cut."""

from engine_core.messages import Tokenization
from engine_core.refusal import RefusalError

_FIELD = "truncate_prompt_tokens"


def truncation_limit(limit: int | None, model_len: int, *, longest: int) -> int | None:
    """Tokens, None for no cut; -1 means `longest`. Raises RefusalError for 0, and
    for more than the model's context length."""
    if limit == -1:
        return longest
    if limit == 0:
        raise RefusalError("invalid_request", f"{_FIELD}: -1, or 1 and more", _FIELD)
    if limit is not None and limit > model_len:
        message = f"{_FIELD}: {limit} is more than this model's context length, {model_len}"
        raise RefusalError("invalid_request", message, _FIELD)
    return limit


def items_cut_to(limit: int | None, model_len: int) -> Tokenization:
    """The tokenization that cuts each text to `limit` tokens, special tokens included. Raises
    RefusalError."""
    return Tokenization(truncate_to=truncation_limit(limit, model_len, longest=model_len))
