"""When the step after the running one is submitted: as late as the worker allows.

A request that arrives while step N runs can be in step N + 1 only if that has not been submitted
yet; but the worker must have N + 1 before N ends. So N + 1 is due when N is expected to end, less
the time that the worker needs it earlier: the margin.

A step is expected to take the least of the last few times that a similar one took. Decode steps
drift slowly, so that is close, and it errs on the harmless side: too early. A kind of step that
has never run is not expected to take any time, and the next is submitted at once. The margin
follows the idle time that the worker reports: it widens after a gap and shrinks by less after none.
"""

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from workers.messages import StepInput, StepOutput

_REMEMBERED = 8
_MAX_KINDS = 1024
_FIRST_MARGIN, _LEAST_MARGIN, _MOST_MARGIN = 1e-3, 0.2e-3, 20e-3
_WIDEN, _SHRINK = 1.02, 0.999
"""What the margin is multiplied by after a step with a gap, and after one without: it balances
where one held step in twenty has a gap. It follows what the worker always needs, not the odd step
that was shorter than expected: a wide margin costs every arrival more than a gap costs once."""

_NOISE_US = 50
"""A gap that is there between any two steps, however early the second was submitted."""

_Kind = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Submitted:
    """`kinds`: what it is like, closest first. `held`: it waited until it was due, so its idle time
    says whether that was early enough."""

    kinds: tuple[_Kind, ...]
    queued: bool
    held: bool


class Pacer:
    """Predicts the steps of one worker that runs them in order. Times are in seconds, of any one
    clock.

    `due` is when the next step should be submitted, while another is running; without one, or
    without any idea of its end, it lies in the past.
    """

    def __init__(self) -> None:
        self.due = -math.inf
        self._margin = _FIRST_MARGIN
        self._steps: deque[_Submitted] = deque()
        self._started = 0.0
        self._durations: OrderedDict[_Kind, deque[float]] = OrderedDict()

    def submitted(self, step: StepInput, now: float) -> None:
        """`step` has been sent to the worker."""
        queued = bool(self._steps)
        held = queued and self._started < self.due <= now
        self._steps.append(_Submitted(_kinds(step), queued, held))
        if not queued:
            # An idle worker begins as long after the submission as it needs a step early.
            self._begin(now + self._margin)

    def finished(self, output: StepOutput, now: float) -> None:
        """The result of the oldest step has come; the next one has the worker for itself."""
        step = self._steps.popleft()
        gap = max(output.idle_us, 0) / 1e6 if step.queued else 0.0
        for kind in step.kinds:
            self._remember(kind, max(now - self._started - gap, 0.0))
        if step.held and output.idle_us >= 0:
            self._adapt(output.idle_us)
        if self._steps:
            self._begin(now)
        else:
            self.due = -math.inf

    def _begin(self, started: float) -> None:
        """The oldest step begins: when is the one after it due?"""
        self._started = started
        known = (self._durations.get(kind) for kind in self._steps[0].kinds)
        durations = next(filter(None, known), None)
        self.due = started + min(durations) - self._margin if durations else -math.inf

    def _remember(self, kind: _Kind, seconds: float) -> None:
        durations = self._durations.setdefault(kind, deque(maxlen=_REMEMBERED))
        durations.append(seconds)
        self._durations.move_to_end(kind)
        if len(self._durations) > _MAX_KINDS:
            self._durations.popitem(last=False)

    def _adapt(self, idle_us: int) -> None:
        self._margin *= _WIDEN if idle_us > _NOISE_US else _SHRINK
        self._margin = min(max(self._margin, _LEAST_MARGIN), _MOST_MARGIN)


def _kinds(step: StepInput) -> tuple[_Kind, ...]:
    """Rows and tokens, each to about a tenth, and if no such step is known: tokens alone. Contexts
    count too, but they drift: the last steps know."""
    rows, tokens = (_leading_bits(len(part) // 4) for part in (step.query_lens, step.tokens))
    return (rows, tokens), (0, tokens)


def _leading_bits(value: int) -> int:
    """`value` rounded down to its four leading bits."""
    shift = max(0, value.bit_length() - 4)
    return value >> shift << shift
