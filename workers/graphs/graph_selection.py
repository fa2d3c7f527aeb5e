"""Which CUDA graph a decoder's step takes."""

from dataclasses import dataclass, field
from typing import TypeVar

from workers.attention.context_splits import min_splits
from workers.graphs.full_graph import FullGraph
from workers.graphs.piecewise_graph import PiecewiseGraph
from workers.step.rows import StepRows

_Graph = TypeVar("_Graph", FullGraph, PiecewiseGraph)


@dataclass(slots=True)
class StageGraphs:
    """The captured steps of a stage, each list by rising size.

    decode     decode steps, in rows; attention included
    mixed      steps of a few decode rows and a few chunks, in tokens; attention included
    piecewise  any steps, in tokens; attention is launched between the pieces
    """

    decode: list[FullGraph] = field(default_factory=list[FullGraph])
    mixed: list[PiecewiseGraph] = field(default_factory=list[PiecewiseGraph])
    piecewise: list[PiecewiseGraph] = field(default_factory=list[PiecewiseGraph])

    def select(self, rows: StepRows) -> FullGraph | PiecewiseGraph | None:
        """The smallest graph that holds a step of these rows; None if the step has to be launched
        kernel by kernel.

        A decode step with skewed contexts takes no decode graph: captured attention splits contexts
        by the number of rows alone.
        """
        is_decode = len(rows.slots) == rows.total
        if is_decode and min_splits(rows.contexts) == 1:
            return _smallest(self.decode, rows)
        return _smallest(self.mixed, rows) or _smallest(self.piecewise, rows)


def _smallest(graphs: list[_Graph], rows: StepRows) -> _Graph | None:
    return next((graph for graph in graphs if graph.inputs.hold(rows)), None)
