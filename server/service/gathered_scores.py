"""Log-probabilities of generated tokens that are kept until an answer is whole."""

from collections.abc import Generator
from contextlib import contextmanager

from engine_core.refusal import RefusalError

_NUMBER_BYTES = 64
"""What one takes in an answer, with its token's name, about."""
_LARGE_PART = 8


class GatheredScores:
    """All of one process: they have a bound. Beyond it the largest answer is refused, unless that
    has an eighth of the bound at most: how many small ones there are, admission bounds."""

    def __init__(self, max_bytes: int) -> None:
        """So many bytes of answers."""
        self._most = max_bytes // _NUMBER_BYTES
        self._kept = 0  # by all that are not refused
        self._large: set[GatheredAnswer] = set()  # those of them that may be

    @contextmanager
    def answer(self) -> Generator["GatheredAnswer"]:
        """One is gathered within the block."""
        answer = GatheredAnswer(self)
        try:
            yield answer
        finally:
            if not answer.refused:
                self._forget(answer)

    def grown(self, answer: "GatheredAnswer", more: int) -> None:
        """An answer has so many more: refuse what is too much."""
        self._kept += more
        if answer.numbers * _LARGE_PART > self._most:
            self._large.add(answer)
        while self._kept > self._most and self._large:
            largest = max(self._large, key=lambda each: each.numbers)
            largest.refused = True
            self._forget(largest)

    def _forget(self, answer: "GatheredAnswer") -> None:
        self._kept -= answer.numbers
        self._large.discard(answer)


class GatheredAnswer:
    """What one answer has."""

    def __init__(self, scores: GatheredScores) -> None:
        self._scores = scores
        self.numbers = 0
        self.refused = False

    def grow_to(self, numbers: int) -> None:
        """It has so many from now on. Raises RefusalError `too_large` if it is refused: it may have
        been chosen since the last call."""
        if not self.refused:
            more, self.numbers = numbers - self.numbers, numbers
            self._scores.grown(self, more)
        if self.refused:
            message = (
                f"logprobs: the answer has {numbers} log-probabilities of generated tokens so far, "
                "and all such answers together too many to be kept: stream it, or ask for less"
            )
            raise RefusalError("too_large", message, "logprobs")
