"""`/tokenize` and `/detokenize`."""

import msgspec
from msgspec import UNSET, UnsetType

from server.schemas.chat import Messages, TemplateVariables


class TokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A text to tokenize, as `model` would, or a chat's messages.

    A text gets the tokenizer's special tokens unless `add_special_tokens` is false, a chat, whose
    template writes its own, only if it is true. `return_token_strs` adds each
    token as the vocabulary writes it.
    """

    prompt: str | None = None
    messages: Messages | None = None
    model: str | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    return_token_strs: bool | None = None


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/tokenize`. `max_model_len` is the model's limit, in tokens; `token_strs`, if
    requested, are the tokens as the vocabulary writes them."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """Token ids of `model` to turn into text, special tokens included."""

    tokens: list[int]
    model: str | None = None


class DetokenizedText(msgspec.Struct, frozen=True):
    """The answer of `/detokenize`."""

    prompt: str
