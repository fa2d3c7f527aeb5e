"""Log-probabilities of tokens: the engine's arrays, their bound, their JSON."""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, overload

import msgspec
from msgspec import Raw

from engine_core.messages import Logprobs
from engine_core.refusal import RefusalError
from server.generation.plan import GenerationPlan
from server.schemas.common import PromptLogprob, PromptLogprobs
from server.service.ledger import Account
from server.service.token_text import TokenText

# The log-probability for probability 0: JSON has no infinity.
LOWEST = -9999.0
# Log-probabilities of generated tokens in an answer that is not streamed.
_MOST = 1 << 22
# An answer with more of them, about 4 MB, is large.
_LARGE = 1 << 16
_NUMBER_BYTES = 8  # with its token's id
_NUMBERS_AT_ONCE = 1 << 14
"""Log-probabilities to encode before others have a turn: 5 to 10 ms."""


class ScoredToken(msgspec.Struct, frozen=True):
    """A token with its log-probability, None for a prompt's first token.

    `top` has the likeliest tokens at its position with theirs, best first, or those that are named.
    `rank` is a prompt token's by likelihood, from 1, a sampled token's 0. `offset` is that of its
    text in the choice's, in characters.
    """

    id: int
    logprob: float | None
    top: list[tuple[int, float]]
    rank: int = 0
    offset: int = 0


class ScoredTokens(Sequence[ScoredToken]):
    """Tokens with their log-probabilities in arrays. Access makes objects, which are ten times as
    large."""

    def __init__(self, width: int, first: int | None = None, *, itself_first: bool = False) -> None:
        """`first` is a prompt's first token, which has no score. `itself_first` puts each token
        before its alternatives."""
        self._itself_first = itself_first
        self._first = [] if first is None else [ScoredToken(first, None, [])]
        self._width = self._columns = width
        self._ids, self._ranks, self._offsets = array("i"), array("i"), array("q")
        self._chosen, self._top, self._top_ids = array("f"), array("f"), array("i")

    def add(self, ids: Iterable[int], scored: Logprobs, offsets: Iterable[int] = ()) -> None:
        """Add the next tokens, with their offsets if they are in the choice's text."""
        self._ids.extend(ids)
        self._offsets.extend(offsets)
        self._chosen.frombytes(scored.chosen)
        self._ranks.frombytes(scored.ranks)
        # The same for all tokens: fewer than wanted only if the vocabulary has no more.
        self._columns = min(self._width, scored.width)
        self._top.frombytes(_narrowed(scored.top, scored.width, self._columns))
        self._top_ids.frombytes(_narrowed(scored.top_ids, scored.width, self._columns))

    def __len__(self) -> int:
        return len(self._first) + len(self._ids)

    @overload
    def __getitem__(self, index: int) -> ScoredToken: ...
    @overload
    def __getitem__(self, index: slice) -> list[ScoredToken]: ...
    def __getitem__(self, index: int | slice) -> ScoredToken | list[ScoredToken]:
        """Slices have step 1."""
        if isinstance(index, slice):
            begin, end, _ = index.indices(len(self))
            scored = range(begin, end)[len(self._first[begin:end]) :]
            return self._first[begin:end] + [self._scored(at - len(self._first)) for at in scored]
        at = range(len(self))[index]
        return self[at : at + 1][0]

    def __iter__(self) -> Iterator[ScoredToken]:
        return iter(self[:])

    def _scored(self, row: int) -> ScoredToken:
        top = range(row * self._columns, (row + 1) * self._columns)
        token, logprob = self._ids[row], max(self._chosen[row], LOWEST)
        alternatives = [(self._top_ids[at], max(self._top[at], LOWEST)) for at in top]
        if self._itself_first:
            alternatives = [(token, logprob), *(each for each in alternatives if each[0] != token)]
        return ScoredToken(
            token,
            logprob,
            alternatives,
            self._ranks[row] if self._ranks else 0,
            self._offsets[row] if self._offsets else 0,
        )


def _narrowed(rows: bytes, width: int, columns: int) -> bytes:
    """The first `columns` of each row of `width` numbers of 4 bytes. Another request of the step
    may have asked for more."""
    if columns == width:
        return rows
    begins = range(0, len(rows), 4 * width)
    return b"".join(rows[begin : begin + 4 * columns] for begin in begins)


class HeldScores:
    """Counts the scores held until the answer ends: the prompts', and those of generated tokens
    unless they are streamed."""

    def __init__(self, plan: GenerationPlan, account: Account | None) -> None:
        """`account` is None if no bytes are counted, or no log-probabilities requested."""
        self._account, self._n = account, plan.n
        self._width, self._prompt_width = (
            0 if alternatives is None else alternatives + 1
            for alternatives in (plan.logprobs, plan.params.prompt_logprobs)
        )
        self._generated = self._of_prompts = 0  # tokens
        self.streamed = True

    @property
    def are_many(self) -> bool:
        """True if the answer is large. Each choice repeats its prompt's scores."""
        of_prompts = self._of_prompts * self._prompt_width * self._n
        return of_prompts + self._generated * self._width > _LARGE

    def add(self, generated: int, of_prompts: int) -> None:
        """Count tokens that have come. Raises RefusalError: `too_large` for too many, `overloaded`
        for no room."""
        self._generated += generated
        self._of_prompts += of_prompts
        if not self.streamed and (numbers := self._generated * self._width) > _MOST:
            message = (
                f"logprobs: the answer has {numbers} log-probabilities of generated tokens so far; "
                f"at most {_MOST} are served: stream it, or ask for less"
            )
            raise RefusalError("too_large", message, "logprobs")
        if self._account is not None:
            self._account.hold(_NUMBER_BYTES * self._num_held())

    def _num_held(self) -> int:
        # A token has its id, or its offset, beside its log-probabilities.
        held = self._of_prompts * (self._prompt_width + 1)
        if self._width and not self.streamed:
            held += self._generated * (self._width + 1)
        return held


async def score_columns(
    tokens: Sequence[Sequence[ScoredToken]],
    width: int,
    columns: Callable[[Sequence[ScoredToken]], Sequence[list[Any]]],
) -> Sequence[Any]:
    """The `columns` of all these tokens one behind the other, with `width` alternatives each. Long
    ones are encoded (`Raw`), with other requests in between: a prompt may have 200 MB of scores."""
    count = max(1, _NUMBERS_AT_ONCE // (width + 1))
    if sum(map(len, tokens)) <= count:
        return columns([*chain.from_iterable(tokens)])
    parts: list[list[bytes]] = []
    for row in tokens:
        for begin in range(0, len(row), count):
            made = columns(row[begin : begin + count])
            parts.append([msgspec.json.encode(column)[1:-1] for column in made])
            await asyncio.sleep(0)
    return [Raw(b"[%b]" % b",".join(column)) for column in zip(*parts, strict=True)]


async def prompt_logprobs(
    tokens: Sequence[ScoredToken], width: int, text: TokenText
) -> PromptLogprobs:
    """A prompt's scores in vLLM's form: for each token an entry with it and the `width` likeliest.
    The first entry is None, and the only one if the time was over."""
    if not tokens:
        return [None]
    (entries,) = await score_columns(
        [tokens], width, lambda some: [[_entry(token, width, text) for token in some]]
    )
    return entries


def _entry(token: ScoredToken, width: int, text: TokenText) -> dict[int, PromptLogprob] | None:
    if token.logprob is None:
        return None  # the first one follows nothing
    entry = {token.id: PromptLogprob(token.logprob, token.rank, text[token.id])}
    for rank, (other, logprob) in enumerate(token.top[:width], 1):
        entry[other] = PromptLogprob(logprob, rank, text[other])
    return entry
