"""One row of a generate job on its way to the client."""

from functools import cached_property
from typing import Literal

import numpy as np

from engine_core.messages import Finish, Logprobs, RowOutput
from engine_core.tokenizer import Tokenizer
from server.detokenize import CONTEXT_TOKENS, Detokenizer, StopStrings
from server.logprobs import LogprobsBuilder
from server.schemas.completions import CompletionChoice


class Prompt:
    """One prompt as the engine understood it; `echo` is its text where that is to be repeated."""

    def __init__(self, tokenizer: Tokenizer, ids: bytes, echo: str | None) -> None:
        self.echo = echo
        self._ids = np.frombuffer(ids, np.int32)
        self._tokenizer = tokenizer

    @cached_property
    def ids(self) -> list[int]:
        """The prompt's token ids."""
        return self._ids.tolist()

    @cached_property
    def lengths(self) -> list[int]:
        """The number of characters that each token adds to the prompt's text."""
        detokenizer = Detokenizer(self._tokenizer, [])
        return [len(detokenizer.step(token)) for token in self.ids]

    def detokenizer(self) -> Detokenizer:
        """For a text that goes on from this prompt."""
        return Detokenizer(self._tokenizer, self._ids[-CONTEXT_TOKENS:].tolist())


class Choice:
    """What has become certain of one row: text, log-probabilities, how it ended.

    `tokens` counts every generated token: a stop token and text cut at a stop string included.
    """

    def __init__(
        self,
        index: int,
        prompt: Prompt,
        stops: tuple[str, ...],
        logprobs: LogprobsBuilder | None,
    ) -> None:
        self.index = index
        self.tokens = 0
        self.finish_reason: Literal["stop", "length"] | None = None
        self._prompt = prompt
        self._detokenizer = prompt.detokenizer()
        self._stops = StopStrings(stops) if stops else None
        self._text = prompt.echo or ""
        self._logprobs = logprobs
        self._scored = 1  # nothing scores a prompt's first token
        if logprobs is not None and prompt.echo is not None:
            logprobs.first(prompt.ids[0], prompt.lengths[0])

    def take(self, output: RowOutput) -> None:
        """Take one piece of the engine's news; afterwards `finish_reason` tells whether to go on.

        A row that has met a stop string is over, whatever the engine still says.
        """
        if self.finish_reason is not None:
            return
        if output.scored is not None and self._logprobs is not None:
            self._take_scored(output.scored, self._logprobs)
        if output.token >= 0:
            self._take_token(output)
        if output.finish is not None and self.finish_reason is None:
            self._end(output.finish)

    def news(self) -> CompletionChoice | None:
        """What has become certain since the last call, if anything has."""
        if not self._text and self.finish_reason is None:
            return None
        text, self._text = self._text, ""
        logprobs = self._logprobs.take() if self._logprobs is not None else None
        return CompletionChoice(self.index, text, logprobs, self.finish_reason)

    def _take_scored(self, scored: Logprobs, builder: LogprobsBuilder) -> None:
        begin = self._scored
        self._scored += len(scored.chosen) // 4
        builder.extend(
            self._prompt.ids[begin : self._scored],
            self._prompt.lengths[begin : self._scored],
            scored,
        )

    def _take_token(self, output: RowOutput) -> None:
        # The token that comes with "stop" is the stop token: it has no text.
        piece = "" if output.finish == "stop" else self._detokenizer.step(output.token)
        if self._logprobs is not None and output.sampled is not None:
            if self.tokens == 0:
                self._logprobs.offset = len(self._text)
            self._logprobs.extend([output.token], [len(piece)], output.sampled)
        self.tokens += 1
        self._say(piece)

    def _say(self, piece: str) -> None:
        if self._stops is None:
            self._text += piece
            return
        self._text += self._stops.push(piece)
        if self._stops.found:
            self.finish_reason = "stop"

    def _end(self, finish: Finish) -> None:
        self._say(self._detokenizer.flush())
        if self.finish_reason is None:
            self.finish_reason = "length" if finish == "length" else "stop"
            if self._stops is not None:
                self._text += self._stops.flush()
