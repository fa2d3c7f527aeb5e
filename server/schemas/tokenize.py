"""`/tokenize` and `/detokenize`."""

import msgspec


class TokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A text to tokenize, as `model` would."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/tokenize`. `max_model_len` is the model's limit, in tokens."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """Token ids of `model` to turn into text, special tokens included."""

    tokens: list[int]
    model: str | None = None


class DetokenizedText(msgspec.Struct, frozen=True):
    """The answer of `/detokenize`."""

    prompt: str
