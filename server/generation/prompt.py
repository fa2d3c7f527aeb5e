"""One prompt of a generate job: its text, its ids, and how likely they were."""

from array import array
from functools import cached_property
from itertools import accumulate

from engine_core.messages import Logprobs
from server.generation.detokenize import CONTEXT_TOKENS, Detokenizer, finished_text
from server.generation.plan import GenerationPlan
from server.generation.scored_tokens import ScoredTokens
from server.service.service import Model


class Prompt:
    """One prompt as the engine understood it; `echo` is its text if the choices repeat it, else
    empty; `scores` are those of its tokens if the request wants them, as far as they have come."""

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
        """The prompt's token ids."""
        return array("i", self._ids).tolist()

    def add_scores(self, scored: Logprobs) -> None:
        """Those of the next tokens, which the row of its first choice brings."""
        if self.scores is None:
            return
        begin = len(self.scores)
        some = slice(begin, begin + len(scored.chosen) // 4)
        self.scores.add(self.ids[some], scored, self._offsets[some] if self._is_placed else ())

    def detokenizer(self) -> Detokenizer:
        """For a text that continues this prompt."""
        context = array("i", self._ids[-4 * CONTEXT_TOKENS :]).tolist()
        return Detokenizer(self._tokenizer, context, skip_special_tokens=self._skips)

    @cached_property
    def _offsets(self) -> list[int]:
        """Where each token begins in the prompt's text, in characters."""
        detokenizer = Detokenizer(self._tokenizer, [], skip_special_tokens=self._skips)
        lengths = [len(detokenizer.step(token)) for token in self.ids]
        return list(accumulate(lengths[:-1], initial=0))

    def _echo(self, plan: GenerationPlan, position: int) -> str:
        """The text as it was sent, or the text of its ids if the model saw something else."""
        is_whole = plan.options.tokenization.truncate_to is None
        if plan.prompts.texts and self._skips and is_whole:
            return plan.prompts.texts[position]
        return finished_text(self._tokenizer, self.ids, skip_special_tokens=self._skips)
