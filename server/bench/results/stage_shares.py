"""What each stage of a pipeline did during a run: computing, waiting, sending on, or nothing.

The *bubble* of a stage is the share of time in which it does not compute, from its first step's
start to its last one's end; that of a pipeline is its worst stage's.
"""

from collections.abc import Iterator, Sequence
from itertools import count

from engine_core.engine_state import StageTime
from server.bench.results.measurement import Figures

_SHARES = ("busy", "waiting", "transfer", "idle")


def stage_figures(before: Sequence[StageTime], after: Sequence[StageTime]) -> Figures:
    """The shares of each stage between two heartbeats at which no step was in flight, and the
    seconds that they are shares of. Empty for one stage, or without a step."""
    figures: Figures = {}
    bubbles = [0.0]
    for stage, (first, last) in enumerate(zip(before, after, strict=True)):
        # A stage's steps follow each other: these times and the gaps, which are idle, are all.
        spent = {name: getattr(last, f"{name}_s") - getattr(first, f"{name}_s") for name in _SHARES}
        if len(after) == 1 or not (seconds := sum(spent.values())):
            return {}
        figures |= {_name(stage, name): spent[name] / seconds for name in _SHARES}
        figures[f"stage_{stage}_seconds"] = seconds
        bubbles.append(1 - spent["busy"] / seconds)
    return {"bubble_share": max(bubbles)} | figures


def stage_lines(figures: Figures) -> Iterator[str]:
    """A line a stage, for people."""
    for stage in count():
        if _name(stage, "busy") not in figures:
            return
        shares = ", ".join(f"{name} {figures[_name(stage, name)]:.1%}" for name in _SHARES)
        yield f"stage {stage}: {shares} of {figures[f'stage_{stage}_seconds']:.2f} s"


def _name(stage: int, share: str) -> str:
    return f"stage_{stage}_{share}_share"
