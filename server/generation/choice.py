"""One choice of a generate job, from its row's tokens to pieces of text."""

import codecs
import functools
from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import msgspec
from msgspec import UNSET, UnsetType

from engine_core.messages import Logprobs, RowOutput
from engine_core.tokenization.tokenizer import TextBytes, Tokenizer
from server.generation.plan import GenerationPlan
from server.generation.scores import LOWEST, ScoredToken, ScoredTokens
from server.schemas.common import FinishReason
from server.service.service import Model

# Enough of a prompt's tail to know if a text, or a character, has begun.
CONTEXT_TOKENS = 8


class Detokenizer:
    """Incremental text of one row: its pieces together are what decoding all ids would add.

    `context` is the tail of the prompt. A character comes once it is complete. Bytes that are not
    UTF-8 become U+FFFD, as by Python's decoder.
    """

    def __init__(
        self, tokenizer: Tokenizer, context: list[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._bytes = TextBytes(tokenizer.token_bytes, skip_special_tokens=skip_special_tokens)
        self._pending = b""  # of an incomplete character
        self._decoded(b"".join(map(self._bytes.next, context)))

    def step(self, token: int) -> str:
        """The text that `token` makes certain."""
        return self._decoded(self._bytes.next(token))

    def _decoded(self, data: bytes) -> str:
        data = self._pending + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text


class StopStrings:
    """Finds the stop string that ends first, of two the longer, in a text that comes in pieces.

    Text that may yet become a stop string is held back, unless stop strings are `included` in the
    text. One Knuth-Morris-Pratt automaton a stop string (SIAM J. Comput. 6(2), 1977) keeps the
    length of its longest prefix that ends the text. A character costs constant amortised time.
    """

    def __init__(self, stops: tuple[str, ...], *, included: bool = False) -> None:
        """No stop string is empty."""
        self._stops = [(stop, _failure_links(stop)) for stop in stops]
        self._states = [0] * len(stops)
        self._included = included
        self._held = ""
        self.found = False

    def push(self, added: str, *, may_end: bool = True) -> str:
        """The text that is now certain to come before any stop string. Without `may_end`, a stop
        string completed in `added` is ordinary text."""
        if not self._stops:
            return added
        text = self._held + added
        for end, char in enumerate(added, start=len(self._held) + 1):
            if (matched := self._advance(char)) and may_end:
                self.found = True
                self._held = ""
                return text[: end if self._included else end - matched]
        keep = 0 if self._included else max(self._states, default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, once nothing can follow it."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Take one character. Returns the length of the longest stop string completed, or 0."""
        matched = 0
        for index, (stop, links) in enumerate(self._stops):
            state = self._states[index]
            while state and stop[state] != char:
                state = links[state - 1]
            state += stop[state] == char
            if state == len(stop):
                matched = max(matched, state)
                state = links[state - 1]
            self._states[index] = state
        return matched


@functools.lru_cache(maxsize=256)
def _failure_links(pattern: str) -> tuple[int, ...]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    links = [0] * len(pattern)
    length = 0
    for position in range(1, len(pattern)):
        while length and pattern[position] != pattern[length]:
            length = links[length - 1]
        length += pattern[position] == pattern[length]
        links[position] = length
    return tuple(links)


class TextPiece(msgspec.Struct, frozen=True):
    """A piece of a choice's text that has become certain, with the tokens since the last piece.

    The last piece has the `finish_reason`, the first the prompt's text (`echo`) and `prompt_ids`.
    Tokens have scores. Text and tokens of the prompt, tokens and ids are there only if requested.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    tokens: Sequence[ScoredToken]
    prompt_tokens: Sequence[ScoredToken]
    token_ids: list[int] | UnsetType
    prompt_ids: list[int] | UnsetType
    echo: str = ""


class Prompt:
    """One prompt as the engine understood it. `echo` is its text if choices repeat it. `scores` are
    its tokens' so far if they are requested."""

    def __init__(self, model: Model, plan: GenerationPlan, position: int, ids: bytes) -> None:
        self._tokenizer = model.tokenizer
        self._skips = plan.skip_special_tokens
        self._ids = ids  # int32
        self._is_placed = plan.echo and plan.logprobs is not None
        self.echo = self._echo(plan, position) if plan.echo else ""
        width = plan.params.prompt_logprobs
        self.scores = None if width is None else ScoredTokens(width, next(iter(self.ids), None))

    @cached_property
    def ids(self) -> list[int]:
        return array("i", self._ids).tolist()

    def add_scores(self, scored: Logprobs) -> None:
        """Add the scores of the next tokens. They come with the row of the first choice."""
        if self.scores is None:
            return
        begin = len(self.scores)
        some = slice(begin, begin + len(scored.chosen) // 4)
        self.scores.add(self.ids[some], scored, self._offsets[some] if self._is_placed else ())

    def detokenizer(self) -> Detokenizer:
        """A detokenizer for text that continues this prompt."""
        context = array("i", self._ids[-4 * CONTEXT_TOKENS :]).tolist()
        return Detokenizer(self._tokenizer, context, skip_special_tokens=self._skips)

    @cached_property
    def _pieces(self) -> list[str]:
        """The text that each token makes certain."""
        detokenizer = Detokenizer(self._tokenizer, [], skip_special_tokens=self._skips)
        return list(map(detokenizer.step, self.ids))

    @cached_property
    def _offsets(self) -> list[int]:
        """The offset of each token in the prompt's text, in characters."""
        return list(accumulate(map(len, self._pieces[:-1]), initial=0))

    def _echo(self, plan: GenerationPlan, position: int) -> str:
        """The text as it was sent, or that of the ids if the model saw another."""
        is_whole = plan.options.tokenization.truncate_to is None
        if plan.prompts.texts and self._skips and is_whole:
            return plan.prompts.texts[position]
        return "".join(self._pieces)


class Choice:
    """The certain text of one row, with its log-probabilities and its end.

    The first choice of a scored prompt brings the scores before the others begin. `tokens` counts
    every generated token, a stop token and those cut off included; `cached` the prompt's tokens
    that had been computed before.
    """

    def __init__(self, index: int, prompt: Prompt, model: Model, plan: GenerationPlan) -> None:
        """`index` is the row."""
        self.index = index
        self.tokens = 0
        self.cached = 0
        self.finish_reason: FinishReason | None = None
        self._prompt = prompt
        self._plan = plan
        self._detokenizer = prompt.detokenizer()
        self._stops = StopStrings(plan.stops, included=plan.include_stop)
        self._text = ""
        self._offset = len(prompt.echo)  # where the next token begins in the choice's text
        self._ids = array("i")
        self._begun = False
        self._likelihood = 0.0  # the sum of all tokens' log-probabilities
        self._sampled = None if plan.logprobs is None else ScoredTokens(plan.logprobs)
        self._scores_sent = 0

    @property
    def met_stop_string(self) -> bool:
        """True if a stop string of the request has ended it."""
        return self._stops.found

    @property
    def likelihood(self) -> float:
        """The mean log-probability of the tokens, if the engine reports them."""
        return self._likelihood / max(self.tokens, 1)

    def apply(self, output: RowOutput) -> None:
        """Apply one update of the engine. Updates after the end are ignored."""
        if self.finish_reason is not None:
            return
        self.cached += output.cached
        if output.scored is not None:
            self._prompt.add_scores(output.scored)
        if output.token >= 0:
            self._apply_token(output)
        if output.finish is not None:
            self.end("length" if output.finish == "length" else "stop")

    def end(self, reason: FinishReason) -> None:
        """End the choice, and release the text that was held back for a stop string."""
        if self.finish_reason is not None:
            return
        self.finish_reason = reason
        self._text += self._stops.flush()

    def next_piece(self) -> TextPiece | None:
        """The piece that has become certain since the last call, None if there is none."""
        plan = self._plan
        echo = "" if self._begun else self._prompt.echo
        if not (self._text or echo or self.finish_reason is not None):
            return None
        piece = TextPiece(
            self.index,
            self._text,
            self.finish_reason,
            [] if self._sampled is None else self._sampled,
            self._new_scores(),
            self._ids.tolist() if plan.return_token_ids else UNSET,
            self._prompt.ids if plan.return_token_ids and not self._begun else UNSET,
            echo,
        )
        self._begun = True
        self._text = ""
        if self._ids:
            self._ids = array("i")
        if plan.logprobs is not None:
            self._sampled = ScoredTokens(plan.logprobs)
        return piece

    def _new_scores(self) -> Sequence[ScoredToken]:
        """The prompt's scores that no piece has had. First pieces with all of them share one
        object."""
        scores = self._prompt.scores
        if scores is None:
            return []
        begin, self._scores_sent = self._scores_sent, len(scores)
        return scores[begin:] if begin else scores

    def _apply_token(self, output: RowOutput) -> None:
        # The token that comes with "stop" is the stop token, whose text must be requested.
        silent = output.finish == "stop" and not self._plan.include_stop
        text = "" if silent else self._detokenizer.step(output.token)
        if output.sampled is not None:
            self._add_sampled(output.token, output.sampled)
            self._offset += len(text)
        if self._plan.return_token_ids:
            self._ids.append(output.token)
        self.tokens += 1
        may_end = self.tokens >= self._plan.params.min_tokens
        self._text += self._stops.push(text, may_end=may_end)
        if self._stops.found:
            self.finish_reason = "stop"

    def _add_sampled(self, token: int, sampled: Logprobs) -> None:
        (logprob,) = array("f", sampled.chosen)
        self._likelihood += max(logprob, LOWEST)
        if self._sampled is not None:
            self._sampled.add([token], sampled, [self._offset])
