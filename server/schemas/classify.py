"""`/v1/classify`, in vLLM's form."""

import msgspec

from server.schemas.common import EncodeAnswer, EncodeRequest, KeptTokens, TextOrIds


class ClassifyRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/v1/classify`: a text, texts, one input's token ids, or inputs' token ids.

    With `use_activation` false the answer holds logits instead of probabilities.
    """

    input: TextOrIds
    truncate_prompt_tokens: KeptTokens | None = None
    use_activation: bool | None = None


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """One input: its likeliest label, and the probability of every label in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationList(EncodeAnswer[Classification], frozen=True, kw_only=True):
    """The answer of `/v1/classify`, in input order."""
