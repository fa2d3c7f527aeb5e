"""When the step after the running one is submitted: as late as the worker allows.

A request that arrives while step N runs can join step N + 1 until that is submitted. The worker
needs it before N ends, so it is due a margin before the expected end of N.

A step is expected to take the least of the last few durations of similar steps, which errs on the
harmless side: too early. A kind that has never run is expected to take no time. The margin follows
the idle time that the worker reports: it widens after a gap and shrinks, by less, after a step
without one.

Steps with prompts have a margin of their own, because a worker needs them earlier, and steps are
held back exactly for prompts. One that arrives between the two margins is submitted at once; the
gap that this may cost changes neither. To both comes the time in which prompts that wait are put
into the step: long ones that share most of theirs take a tenth of a millisecond each.
"""

import math
from collections import defaultdict, deque
from dataclasses import dataclass

from workers.contract.messages import StepInput, StepTimes

_REMEMBERED = 8
_FIRST_MARGIN, _LEAST_MARGIN, _MOST_MARGIN = 1e-3, 0.2e-3, 20e-3
_WIDEN, _SHRINK = 1.02, 0.999
"""Factors of the margin after a step with a gap, and after one without. They balance when one held
step in twenty has a gap: a wide margin costs every arrival more than one gap costs."""

_NOISE_US = 50
"""The gap between any two steps, however early the second was submitted."""

_Kind = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A step in flight.

    kinds       its size, the closest description first
    prompts     it has prompt tokens
    overlapped  it was submitted while another step was in flight
    held        it was submitted when it was due: its idle time shows if that was early enough
    """

    kinds: tuple[_Kind, ...]
    prompts: bool
    overlapped: bool
    held: bool


class Pacer:
    """Predicts the steps of one worker that runs them in order. Times are in seconds."""

    def __init__(self) -> None:
        # Both by whether the step has prompts: the margin; whether the next step has been held
        # back since the oldest step began.
        self._margins = [_FIRST_MARGIN, _FIRST_MARGIN]
        self._held_back = [False, False]
        self._steps: deque[_Submitted] = deque()
        self._started, self._end = 0.0, -math.inf
        self._making = 0.0, 0  # since when a step is made, and how many prompts waited then
        # The core's own seconds for the last steps: those without new prompts, and for each prompt.
        self._step_seconds: deque[float] = deque([0.0], maxlen=_REMEMBERED)
        self._prompt_seconds: deque[float] = deque([0.0], maxlen=_REMEMBERED)
        # Not many, as sizes are rounded.
        self._durations: defaultdict[_Kind, deque[float]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )

    def due(self, prompts: int) -> float:
        """The time to begin the next step, with so many prompts, while another is running.

        In the past if none is running, or its end cannot be predicted."""
        return self._end - self._margins[prompts > 0] - prompts * min(self._prompt_seconds)

    def may_wait(self, now: float, prompts: int) -> bool:
        """Whether the next step may. If not, it is made from `now` on."""
        self._making = now, prompts
        waits = now < self.due(prompts)
        self._held_back[prompts > 0] |= waits
        return waits

    def step_made(self, now: float, left: int) -> None:
        """Note that a step has been made since `may_wait`, and how many prompts wait still."""
        began, prompts = self._making
        seconds, begun = now - began, prompts - left
        if begun > 0:
            own = max(0.0, seconds - min(self._step_seconds))
            self._prompt_seconds.append(own / begun)
        else:
            self._step_seconds.append(seconds)

    def step_submitted(self, step: StepInput, now: float) -> None:
        overlapped, prompts = bool(self._steps), len(step.tokens) > len(step.query_lens)
        held = overlapped and self._held_back[prompts] and self.due(prompts) <= now
        self._steps.append(_Submitted(_kinds(step), prompts, overlapped, held))
        if not overlapped:
            # An idle worker begins a margin after the submission.
            self._begin(now + self._margins[prompts])

    def step_finished(self, times: StepTimes, now: float) -> None:
        """Note that the oldest step is over. The worker runs the next one now."""
        step = self._steps.popleft()
        gap = max(times.idle_us, 0) / 1e6 if step.overlapped else 0.0
        for kind in step.kinds:
            self._durations[kind].append(max(now - self._started - gap, 0.0))
        if step.held and times.idle_us >= 0:
            self._adapt(times.idle_us, prompts=step.prompts)
        if self._steps:
            self._begin(now)
        else:
            self._end = -math.inf

    def _begin(self, started: float) -> None:
        self._started = started
        self._held_back = [False, False]
        known = (self._durations.get(kind) for kind in self._steps[0].kinds)
        durations = next(filter(None, known), None)
        self._end = started + min(durations) if durations else -math.inf

    def _adapt(self, idle_us: int, *, prompts: bool) -> None:
        margin = self._margins[prompts] * (_WIDEN if idle_us > _NOISE_US else _SHRINK)
        self._margins[prompts] = min(max(margin, _LEAST_MARGIN), _MOST_MARGIN)


def _kinds(step: StepInput) -> tuple[_Kind, ...]:
    """(rows, tokens), rounded to about a tenth, then (0, tokens) for rows that were never seen.

    Context lengths matter too, but drift slowly: the last durations reflect them."""
    rows, tokens = (_leading_bits(len(part) // 4) for part in (step.query_lens, step.tokens))
    return (rows, tokens), (0, tokens)


def _leading_bits(value: int) -> int:
    """`value` rounded down to its four leading bits."""
    shift = max(0, value.bit_length() - 4)
    return value >> shift << shift
