"""The prompts of a job in the groups that they are submitted in."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from engine_core.prefix_groups.find_groups import find_groups
from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server.generation.plan import GenerationPlan
from server.schemas.completions import CompletionRequest

_ID_BYTES = 4
_UNSHARED_AT_ONCE = 64
"""Prompts that share nothing, in one message."""


class PromptRow(Protocol):
    """A prompt of which `width` sequences are generated. `tokens` is the most that the engine may
    count for all of them."""

    @property
    def ids(self) -> bytes:
        """The whole prompt, int32."""
        ...

    @property
    def cache_salt(self) -> str: ...

    @property
    def width(self) -> int: ...

    @property
    def tokens(self) -> int: ...


RowT = TypeVar("RowT", bound=PromptRow)


@dataclass(frozen=True, slots=True)
class Row:
    """A request of a job: its number, and its prompt's ids (int32 bytes). The ids are empty where
    the engine is to make them, or where there are none."""

    index: int
    body: CompletionRequest
    plan: GenerationPlan
    ids: bytes

    @property
    def cache_salt(self) -> str:
        return self.plan.cache_salt

    @property
    def width(self) -> int:
        return self.plan.width

    @property
    def tokens(self) -> int:
        """A text's tokens are at most its bytes."""
        size = len(self.ids) // _ID_BYTES if self.ids else self.plan.prompts.size
        return size * self.plan.width


class Bundle(NamedTuple, Generic[RowT]):
    """Rows whose prompts begin with the same `prefix_len` tokens."""

    prefix_len: int
    rows: Sequence[RowT]


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


def may_share(row: Row) -> bool:
    """Whether a row can be in a group: its ids are known and complete."""
    return bool(row.ids) and row.plan.tokenization.truncate_to is None


def bundles(rows: Sequence[RowT]) -> Iterator[Bundle[RowT]]:
    """The groups of rows that may share, those with a shared prefix first. Prompts of different
    cache salts, or numbers of choices, are not in one."""
    alike: defaultdict[tuple[str, int], list[RowT]] = defaultdict(list)
    for row in rows:
        alike[row.cache_salt, row.width].append(row)
    for own in alike.values():
        for prefix_len, members in find_groups([row.ids for row in own]):
            grouped = [own[int(member)] for member in members]
            if prefix_len:
                yield Bundle(prefix_len, grouped)
                continue
            for start in range(0, len(grouped), _UNSHARED_AT_ONCE):
                yield Bundle(0, grouped[start : start + _UNSHARED_AT_ONCE])


def cut(bundle: Bundle[RowT], rows: int, tokens: int) -> Iterator[Bundle[RowT]]:
    """Parts of at most so many sequences and tokens (but one row at least)."""
    part: list[RowT] = []
    sequences = size = 0
    for row in bundle.rows:
        sequences, size = sequences + row.width, size + row.tokens
        if part and (sequences > rows or size > tokens):
            yield Bundle(bundle.prefix_len, part)
            part, sequences, size = [], row.width, row.tokens
        part.append(row)
    yield Bundle(bundle.prefix_len, part)
