"""Which CUDA graph a decoder's step takes."""

from dataclasses import dataclass, field
from typing import TypeVar

from workers.attention.context_splits import has_skewed_context
from workers.graphs.full_graph import FullGraph
from workers.graphs.partial_graph import PartialGraph
from workers.step.rows import StepRows

_Graph = TypeVar("_Graph", FullGraph, PartialGraph)


@dataclass(slots=True)
class StageGraphs:
    """The captured steps of a stage, each list by rising size.

    decode     a token a row, in rows; attention included
    grouped    the same, with prefixes that rows share attended once
    mixed      a few decode rows and a few chunks, in tokens; attention included
    piecewise  any rows, in tokens; attention is launched between the pieces
    """

    decode: list[FullGraph] = field(default_factory=list[FullGraph])
    grouped: list[FullGraph] = field(default_factory=list[FullGraph])
    mixed: list[PartialGraph] = field(default_factory=list[PartialGraph])
    piecewise: list[PartialGraph] = field(default_factory=list[PartialGraph])

    def select(self, rows: StepRows) -> FullGraph | PartialGraph | None:
        """The smallest graph that has room for a step of these rows; None if the step has to be
        launched kernel by kernel.

        With a skewed context no decode graph is taken: captured attention splits contexts by the
        number of rows alone.
        """
        is_decode = len(rows.slots) == rows.total
        if is_decode and (grouped := self._grouped(rows)):
            return grouped
        if is_decode and not has_skewed_context(rows.contexts):
            return _smallest(self.decode, rows)
        return _smallest(self.mixed, rows) or _smallest(self.piecewise, rows)

    def _grouped(self, rows: StepRows) -> FullGraph | None:
        """The graph for rows some of which share a prefix that is worth it."""
        graph = _smallest(self.grouped, rows)
        if graph is None or graph.inputs.prefixes is None:
            return None
        tables = graph.inputs.prefixes.tables(rows)
        if tables is None or has_skewed_context(rows.contexts - tables.starts):
            return None
        return graph


def _smallest(graphs: list[_Graph], rows: StepRows) -> _Graph | None:
    return next((graph for graph in graphs if graph.inputs.has_room_for(rows)), None)
