"""The log-probabilities of one answer: how many there are, and the bytes that are held of them."""

from engine_core.refusal import RefusalError
from server.generation.plan import GenerationPlan
from server.service.ledger import Account

# Of generated tokens in an answer that is not streamed: as many as of prompts.
_MOST = 1 << 22
# An answer with more of them, about 4 MB, is large.
_LARGE = 1 << 16
_NUMBER_BYTES = 8  # with its token's id


class HeldScores:
    """Scores of prompts are held until the answer has ended. So are those of generated tokens,
    unless they are streamed."""

    def __init__(self, plan: GenerationPlan, account: Account | None) -> None:
        """`account` is None for who counts no bytes, or asks for no log-probabilities."""
        self._account, self._n = account, plan.n
        self._width, self._prompt_width = (
            0 if alternatives is None else alternatives + 1
            for alternatives in (plan.logprobs, plan.params.prompt_logprobs)
        )
        self._generated = self._of_prompts = 0  # tokens
        self.streamed = True

    @property
    def are_many(self) -> bool:
        """The answer, in which each choice repeats those of its prompt, is large."""
        of_prompts = self._of_prompts * self._prompt_width * self._n
        return of_prompts + self._generated * self._width > _LARGE

    def add(self, generated: int, of_prompts: int) -> None:
        """Count tokens that have come. Raises RefusalError: `too_large` if there are too many,
        `overloaded` if there is no room for them."""
        self._generated += generated
        self._of_prompts += of_prompts
        if not self.streamed:
            self._check()
        if self._account is not None:
            self._account.hold(_NUMBER_BYTES * self._num_held())

    def _num_held(self) -> int:
        # A token has its own id, or its place in the text, beside its log-probabilities.
        held = self._of_prompts * (self._prompt_width + 1)
        if self._width and not self.streamed:
            held += self._generated * (self._width + 1)
        return held

    def _check(self) -> None:
        if (numbers := self._generated * self._width) > _MOST:
            message = (
                f"logprobs: the answer has {numbers} log-probabilities of generated tokens so far; "
                f"at most {_MOST} are served: stream it, or ask for less"
            )
            raise RefusalError("too_large", message, "logprobs")
