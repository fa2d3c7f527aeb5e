"""One prompt of a generate job: its text, its ids, and how likely they were."""

from array import array
from functools import cached_property
from itertools import accumulate

from engine_core.messages import Logprobs
from server.generation.detokenize import CONTEXT_TOKENS, Detokenizer, finished_text
from server.generation.plan import GenerationPlan
from server.generation.scored_tokens import ScoredPrompt
from server.service.registry import Model


class Prompt:
    """One prompt as the engine understood it; `echo` is its text if the choices repeat it, else
    empty; `scores` are those of its tokens if the request wants them."""

    def __init__(self, model: Model, plan: GenerationPlan, position: int, ids: bytes) -> None:
        self._tokenizer = model.tokenizer
        self._skips = plan.skip_special_tokens
        self._ids = ids  # int32
        self.echo = self._echo(plan, position) if plan.echo else ""
        self.scores = PromptScores(self, plan) if plan.params.prompt_logprobs is not None else None

    @cached_property
    def ids(self) -> list[int]:
        """The prompt's token ids."""
        return array("i", self._ids).tolist()

    @cached_property
    def offsets(self) -> list[int]:
        """Where each token begins in the prompt's text, in characters."""
        detokenizer = Detokenizer(self._tokenizer, [], skip_special_tokens=self._skips)
        lengths = [len(detokenizer.step(token)) for token in self.ids]
        return list(accumulate(lengths[:-1], initial=0))

    def detokenizer(self) -> Detokenizer:
        """For a text that continues this prompt."""
        context = array("i", self._ids[-4 * CONTEXT_TOKENS :]).tolist()
        return Detokenizer(self._tokenizer, context, skip_special_tokens=self._skips)

    def _echo(self, plan: GenerationPlan, position: int) -> str:
        """The text as it was sent, or the text of its ids if the model saw something else."""
        as_sent = plan.prompts.texts and self._skips and plan.tokenization.truncate_to is None
        if as_sent:
            return plan.prompts.texts[position]
        return finished_text(self._tokenizer, self.ids, skip_special_tokens=self._skips)


class PromptScores:
    """The log-probabilities of a prompt's tokens, in order, as the row of its first choice brings
    them. They are `complete` when all are there, or when no more will come."""

    def __init__(self, prompt: Prompt, plan: GenerationPlan) -> None:
        self._num_tokens = len(prompt.ids)
        placed = plan.echo and plan.logprobs is not None
        self.tokens = ScoredPrompt(
            prompt.ids,
            plan.params.prompt_logprobs or 0,
            (lambda: prompt.offsets) if placed else None,
        )
        self.complete = len(prompt.ids) <= 1

    def add(self, scored: Logprobs) -> None:
        """The next ones."""
        self.tokens.add(scored)
        self.complete = len(self.tokens) >= self._num_tokens
