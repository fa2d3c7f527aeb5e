"""What comes from the engine core while it serves: steps, in order, and the masks of some."""

from collections import deque

from workers.contract.messages import DecodeStep, EncodeStep, StepInput, StepMask
from workers.links.engine_link import EngineLink


class StepInbox:
    """Hands out steps in submit order, and the mask of a step by its number.

    A mask comes after its step, but perhaps behind later ones, which wait here meanwhile: no more
    than may be in flight.
    """

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine
        self._steps: deque[StepInput] = deque()
        self._masks: dict[int, StepMask] = {}

    def next_step(self) -> StepInput:
        """The next step; waits until it comes. Raises TypeError for a message that is neither a
        step nor a mask."""
        while not self._steps:
            self._receive()
        return self._steps.popleft()

    def take_mask(self, step: int) -> StepMask:
        """The mask of a step with masked rows; waits until it comes. Raises TypeError as above."""
        while step not in self._masks:
            self._receive()
        return self._masks.pop(step)

    def _receive(self) -> None:
        match message := self._engine.receive():
            case DecodeStep() | EncodeStep():
                self._steps.append(message)
            case StepMask(step=step):
                self._masks[step] = message
            case _:
                raise TypeError(f"expected a step, not {type(message).__name__}")
