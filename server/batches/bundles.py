"""The prompts of a job, and their token ids."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server.generation.plan import GenerationPlan
from server.schemas.completions import CompletionRequest

_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A request of a job: its number, and its prompt's ids (int32 bytes). The ids are empty where
    the engine is to make them, or where there are none."""

    index: int
    body: CompletionRequest
    plan: GenerationPlan
    ids: bytes

    @property
    def tokens(self) -> int:
        """A text's tokens are at most its bytes."""
        size = len(self.ids) // _ID_BYTES if self.ids else self.plan.prompts.size
        return size * self.plan.width


def with_ids(
    tokenizer: Tokenizer, planned: Sequence[tuple[int, CompletionRequest, GenerationPlan]]
) -> list[Row]:
    """The rows of plans of one prompt each. Texts are tokenized together, but for those that are to
    be truncated, which the engine does."""
    ids = [b"".join(plan.prompts.ids) for _, _, plan in planned]
    texts = {
        position: (plan.prompts.texts[0], plan.tokenization.add_special_tokens)
        for position, (_, _, plan) in enumerate(planned)
        if plan.prompts.texts and plan.tokenization.truncate_to is None
    }
    for position, tokens in zip(texts, ids_of(tokenizer, list(texts.values())), strict=True):
        ids[position] = tokens
    return [Row(*each, own) for each, own in zip(planned, ids, strict=True)]


def ids_of(tokenizer: Tokenizer, texts: Sequence[tuple[str, bool]]) -> list[bytes]:
    """The ids (int32 bytes) of each text, with special tokens added or not. A text that cannot be
    tokenized has none: the engine refuses it."""
    ids = [b""] * len(texts)
    for special in {special for _, special in texts}:
        own = [at for at, (_, each) in enumerate(texts) if each == special]
        encoded = _encoded(tokenizer, [texts[at][0] for at in own], special)
        for at, tokens in zip(own, encoded, strict=True):
            ids[at] = tokens
    return ids


def _encoded(tokenizer: Tokenizer, texts: list[str], special: bool) -> list[bytes]:
    try:
        return tokenizer.encode(texts, add_special_tokens=special)
    except RefusalError:
        if len(texts) == 1:
            return [b""]
        return [ids for text in texts for ids in _encoded(tokenizer, [text], special)]
