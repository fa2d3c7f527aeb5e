"""`truncate_prompt_tokens` of requests whose texts are read and not continued."""

from engine_core.messages import Tokenization
from server.http.errors import APIError
from server.registry import Model


def items_cut_to(limit: int | None, model: Model) -> Tokenization:
    """The tokenization that cuts each item to `limit` tokens, special tokens included; -1 is the
    model's length, None cuts nothing. Raises APIError for what is neither."""
    field, model_len = "truncate_prompt_tokens", model.max_model_len
    if limit == 0:
        raise APIError("invalid_request", f"{field}: -1, or 1 and more", field)
    if limit is not None and limit > model_len:
        message = f"{field}: {limit} is more than this model's context length, {model_len}"
        raise APIError("invalid_request", message, field)
    return Tokenization(truncate_to=model_len if limit == -1 else limit)
