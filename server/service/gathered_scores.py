"""Log-probabilities of generated tokens that are kept until an answer is whole."""

from collections.abc import Generator
from contextlib import contextmanager

from server.errors import APIError

_NUMBER_BYTES = 64
"""What one takes in an answer, with its token's name, about."""
_LARGE_PART = 8


class GatheredScores:
    """All of one process: they have a bound. Beyond it the largest answer is refused, unless that
    has an eighth of the bound at most: how many small ones there are, admission bounds."""

    def __init__(self, max_bytes: int) -> None:
        """So many bytes of answers."""
        self._most = max_bytes // _NUMBER_BYTES
        self._answers: list[GatheredAnswer] = []

    @contextmanager
    def answer(self) -> Generator["GatheredAnswer"]:
        """One is gathered within the block."""
        answer = GatheredAnswer(self)
        self._answers.append(answer)
        try:
            yield answer
        finally:
            self._answers.remove(answer)

    def bound(self) -> None:
        """Called when an answer has grown: choose those that are refused."""
        kept = [answer for answer in self._answers if not answer.refused]
        excess = sum(answer.numbers for answer in kept) - self._most
        for answer in sorted(kept, key=lambda answer: answer.numbers, reverse=True):
            if excess <= 0 or answer.numbers * _LARGE_PART <= self._most:
                return
            excess -= answer.numbers
            answer.refused = True


class GatheredAnswer:
    """What one answer has."""

    def __init__(self, scores: GatheredScores) -> None:
        self._scores = scores
        self.numbers = 0
        self.refused = False

    def grow_to(self, numbers: int) -> None:
        """It has so many from now on. Raises APIError `too_large` if it is refused: it may have
        been chosen since the last call."""
        self.numbers = numbers
        self._scores.bound()
        if self.refused:
            message = (
                f"logprobs: the answer has {numbers} log-probabilities of generated tokens so far, "
                "and all such answers together too many to be kept: stream it, or ask for less"
            )
            raise APIError("too_large", message, "logprobs")
