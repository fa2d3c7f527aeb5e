"""One row of a generate job on its way to the client."""

from array import array
from functools import cached_property

import numpy as np
from msgspec import UNSET, UnsetType

from engine_core.messages import Logprobs, RowOutput
from server.generation.detokenize import CONTEXT_TOKENS, Detokenizer, StopStrings, finished_text
from server.generation.logprobs import LogprobsBuilder
from server.generation.plan import GenerationPlan
from server.generation.prompt_logprobs import PromptLogprobsBuilder
from server.schemas.completions import CompletionChoice, FinishReason
from server.service.registry import Model
from server.service.token_text import TokenIds


class Prompt:
    """One prompt as the engine understood it; `echo` is its text where that is to be repeated."""

    def __init__(self, model: Model, plan: GenerationPlan, position: int, ids: bytes) -> None:
        self._tokenizer = model.tokenizer
        self._skips = plan.skip_special_tokens
        self._ids = np.frombuffer(ids, np.int32)
        self.echo = self._echo(plan, position) if plan.echo else None

    @cached_property
    def ids(self) -> list[int]:
        """The prompt's token ids."""
        return self._ids.tolist()

    @cached_property
    def lengths(self) -> list[int]:
        """The number of characters that each token adds to the prompt's text."""
        detokenizer = Detokenizer(self._tokenizer, [], skip_special_tokens=self._skips)
        lengths = [len(detokenizer.step(token)) for token in self.ids]
        lengths[-1] += len(detokenizer.flush())
        return lengths

    def detokenizer(self) -> Detokenizer:
        """For a text that goes on from this prompt."""
        context = self._ids[-CONTEXT_TOKENS:].tolist()
        return Detokenizer(self._tokenizer, context, skip_special_tokens=self._skips)

    def _echo(self, plan: GenerationPlan, position: int) -> str:
        """The text as it was sent, or, where that is not what the model saw, as its ids read."""
        as_sent = plan.prompts.texts and self._skips and plan.tokenization.truncate_to is None
        if as_sent:
            return plan.prompts.texts[position]
        return finished_text(self._tokenizer, self.ids, skip_special_tokens=self._skips)


class Choice:
    """What has become certain of one row: text, log-probabilities, how it ended.

    `tokens` counts every generated token: a stop token and text cut at a stop string included.
    `cached` counts those of its prompt that the engine had computed before.
    """

    def __init__(self, index: int, prompt: Prompt, model: Model, plan: GenerationPlan) -> None:
        self.index = index
        self.tokens = 0
        self.cached = 0
        self.finish_reason: FinishReason | None = None
        self._prompt = prompt
        self._plan = plan
        self._detokenizer = prompt.detokenizer()
        self._stops = StopStrings(plan.stops, told=plan.include_stop) if plan.stops else None
        self._text = prompt.echo or ""
        self._ids = array("i")
        self._begun = False
        self._likelihood = 0.0  # the sum of all tokens' log-probabilities
        self._scored = 1  # nothing scores a prompt's first token
        self._logprobs: LogprobsBuilder | None = None
        self._prompt_logprobs: PromptLogprobsBuilder | None = None
        if plan.logprobs is not None:
            spelling = TokenIds() if plan.tokens_as_ids else model.token_text
            self._logprobs = LogprobsBuilder(spelling, plan.logprobs)
        if plan.prompt_logprobs is not None:
            self._prompt_logprobs = PromptLogprobsBuilder(model.token_text, plan.prompt_logprobs)
        if self._logprobs is not None and plan.echo and prompt.ids:
            self._logprobs.first(prompt.ids[0], prompt.lengths[0])

    @property
    def likelihood(self) -> float:
        """The mean log-probability of the tokens, where the engine was asked for them."""
        return self._likelihood / max(self.tokens, 1)

    def take(self, output: RowOutput) -> None:
        """Take one piece of the engine's news; afterwards `finish_reason` tells whether to go on.

        A row that has met a stop string is over, whatever the engine still says.
        """
        if self.finish_reason is not None:
            return
        self.cached += output.cached
        if output.scored is not None:
            self._take_scored(output.scored)
        if output.token >= 0:
            self._take_token(output)
        if output.finish is not None:
            self.end("length" if output.finish == "length" else "stop")

    def end(self, reason: FinishReason) -> None:
        """Nothing follows: tell what was held back. A stop string in it is the reason after all."""
        if self.finish_reason is not None:
            return
        self._say(self._detokenizer.flush())
        if self.finish_reason is None:
            self.finish_reason = reason
            if self._stops is not None:
                self._text += self._stops.flush()

    def news(self) -> CompletionChoice | None:
        """What has become certain since the last call, if anything has."""
        if not self._text and self.finish_reason is None:
            return None
        text, self._text = self._text, ""
        told = CompletionChoice(
            self.index,
            text,
            self._logprobs.take() if self._logprobs is not None else None,
            self.finish_reason,
            *self._ids_news(),
            self._prompt_logprobs.entries if self._prompt_logprobs is not None else UNSET,
        )
        self._begun = True
        return told

    def _ids_news(self) -> tuple[list[int] | UnsetType, list[int] | UnsetType]:
        """The generated ids since the last call, and at first the prompt's."""
        if not self._plan.return_token_ids:
            return UNSET, UNSET
        ids, self._ids = self._ids, array("i")
        return ids.tolist(), UNSET if self._begun else self._prompt.ids

    def _take_scored(self, scored: Logprobs) -> None:
        begin = self._scored
        self._scored += len(scored.chosen) // 4
        ids = self._prompt.ids[begin : self._scored]
        if self._logprobs is not None and self._plan.echo:
            self._logprobs.extend(ids, self._prompt.lengths[begin : self._scored], scored)
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.extend(ids, scored)

    def _take_token(self, output: RowOutput) -> None:
        # The token that comes with "stop" is the stop token: no text, unless it is asked for.
        silent = output.finish == "stop" and not self._plan.include_stop
        piece = "" if silent else self._detokenizer.step(output.token)
        if output.sampled is not None:
            self._take_sampled(output.token, output.sampled, len(piece))
        if self._plan.return_token_ids:
            self._ids.append(output.token)
        self.tokens += 1
        self._say(piece)

    def _take_sampled(self, token: int, sampled: Logprobs, length: int) -> None:
        (chosen,) = np.frombuffer(sampled.chosen, np.float32).tolist()
        self._likelihood += chosen
        if self._logprobs is not None:
            if self.tokens == 0:
                self._logprobs.offset = len(self._text)
            self._logprobs.extend([token], [length], sampled)

    def _say(self, piece: str) -> None:
        if self._stops is None:
            self._text += piece
            return
        may_end = self.tokens >= self._plan.params.min_tokens
        self._text += self._stops.push(piece, may_end=may_end)
        if self._stops.found:
            self.finish_reason = "stop"
