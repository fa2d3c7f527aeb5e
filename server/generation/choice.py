"""One choice of a generate job, from its row's tokens to pieces of text."""

import codecs
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
from server.generation.stop_strings import StopStrings
from server.generation.turn_text import TurnText
from server.schemas.common import FinishReason
from server.service.service import Model
from server.turns.marker_tokens import marker_tokens
from server.turns.turn_parser import Event

# Enough of a prompt's tail to know if a text, or a character, has begun.
CONTEXT_TOKENS = 8


class Detokenizer:
    """Incremental text of one row: its pieces together are what decoding all ids would add.

    `context` is the tail of the prompt. A character comes once it is complete. Bytes that are not
    UTF-8 become U+FFFD, as by Python's decoder. Special tokens that are `kept` are never skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: list[int],
        *,
        skip_special_tokens: bool = True,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        tokens = tokenizer.token_bytes
        self._bytes = TextBytes(tokens, skip_special_tokens=skip_special_tokens, kept=kept)
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


class TextPiece(msgspec.Struct, frozen=True):
    """A piece of a choice's text that has become certain, with the tokens since the last piece.

    The last piece has the `finish_reason`, the first the prompt's text (`echo`) and `prompt_ids`.
    Tokens have scores. Text and tokens of the prompt, tokens and ids are there only if requested.
    If turns are read, `text` is the turn's own, which is also among its `events`; `has_called` once
    the turn has a whole call.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    tokens: Sequence[ScoredToken]
    prompt_tokens: Sequence[ScoredToken]
    token_ids: list[int] | None
    prompt_ids: list[int] | None
    echo: str = ""
    events: Sequence[Event] = ()
    has_called: bool = False


def absent(ids: list[int] | None) -> list[int] | UnsetType:
    """The `ids` of a chunk of a stream, which has none where a whole answer has null."""
    return UNSET if ids is None else ids


class Prompt:
    """One prompt as the engine understood it. `echo` is its text if choices repeat it. `scores` are
    its tokens' so far if they are requested."""

    def __init__(self, model: Model, plan: GenerationPlan, position: int, ids: bytes) -> None:
        self._tokenizer = model.tokenizer
        self._skips = plan.skip_special_tokens
        self.markers: frozenset[int] = frozenset()  # special tokens that the turn's format writes
        if (turn := plan.turn) is not None:
            tokens = model.tokenizer.token_bytes
            self.markers = marker_tokens(tokens, turn.form, calls=bool(turn.tools))
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
        return Detokenizer(
            self._tokenizer, context, skip_special_tokens=self._skips, kept=self.markers
        )

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
    that had been computed before. With the plan's `turn` the text is read as an assistant's turn.
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
        self._turn = None if plan.turn is None else TurnText(plan.turn, self._stops)
        self._reader = self._turn or self._stops
        self._text = ""
        self._offset = len(prompt.echo)  # where the next token begins in the choice's text
        self._ids = array("i")
        self._begun = False
        self._likelihood = 0.0  # the sum of all tokens' log-probabilities
        self._sampled = self._no_tokens()
        self._scores_sent = 0

    @property
    def stop_string(self) -> str:
        """The stop string of the request that has ended it, empty if none has."""
        return self._stops.found

    @property
    def reasoning_tokens(self) -> int:
        """The tokens that came while reasoning was open."""
        return 0 if self._turn is None else self._turn.reasoning_tokens

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
        """End the choice, and release the text that was held back."""
        if self.finish_reason is not None:
            return
        if self._turn is None:
            self._text += self._stops.flush()
        else:
            self._text += self._turn.flush(is_cut=reason != "stop")
        # What a turn held back may end in a stop string.
        self.finish_reason = "stop" if self._stops.found else reason

    def next_piece(self) -> TextPiece | None:
        """The piece that has become certain since the last call, None if there is none."""
        plan = self._plan
        echo = "" if self._begun else self._prompt.echo
        events = () if self._turn is None else self._turn.events()
        if not (self._text or events or echo or self.finish_reason is not None):
            return None
        piece = TextPiece(
            self.index,
            self._text,
            self.finish_reason,
            [] if self._sampled is None else self._sampled,
            self._new_scores(),
            self._ids.tolist() if plan.return_token_ids else None,
            self._prompt.ids if plan.return_token_ids and not self._begun else None,
            echo,
            events,
            self._turn is not None and self._turn.has_called,
        )
        self._begun = True
        self._text = ""
        if self._ids:
            self._ids = array("i")
        self._sampled = self._no_tokens()
        return piece

    def _no_tokens(self) -> ScoredTokens | None:
        plan, named = self._plan, bool(self._plan.params.logprob_token_ids)
        return None if plan.logprobs is None else ScoredTokens(plan.logprobs, itself_first=named)

    def _new_scores(self) -> Sequence[ScoredToken]:
        """The prompt's scores that no piece has had. First pieces with all of them share one
        object."""
        scores = self._prompt.scores
        if scores is None:
            return []
        begin, self._scores_sent = self._scores_sent, len(scores)
        return scores[begin:] if begin else scores

    def _apply_token(self, output: RowOutput) -> None:
        # The token that comes with "stop" is the stop token, whose text must be requested, unless
        # it closes a call.
        silent = output.finish == "stop" and not (
            self._plan.include_stop or output.token in self._prompt.markers
        )
        text = "" if silent else self._detokenizer.step(output.token)
        if output.sampled is not None:
            self._add_sampled(output.token, output.sampled)
            self._offset += len(text)
        if self._plan.return_token_ids:
            self._ids.append(output.token)
        self.tokens += 1
        may_end = self.tokens >= self._plan.params.min_tokens
        self._text += self._reader.push(text, may_end=may_end)
        if self._stops.found:
            self.finish_reason = "stop"

    def _add_sampled(self, token: int, sampled: Logprobs) -> None:
        (logprob,) = array("f", sampled.chosen)
        self._likelihood += max(logprob, LOWEST)
        if self._sampled is not None:
            self._sampled.add([token], sampled, [self._offset])
