"""The captured steps of a stage in one line of the log."""

from collections.abc import Sequence

from workers.graphs.graph_selection import StageGraphs
from workers.graphs.graph_sizes import grouped_graph_sizes


def summary(graphs: StageGraphs, rows: Sequence[int], tokens: Sequence[int]) -> str:
    """Which sizes of graphs were kept, of the captured `rows` of decode steps and `tokens` of steps
    with prompts."""
    kinds = (
        ("decode", graphs.decode, rows, "rows"),
        ("grouped", graphs.grouped, grouped_graph_sizes(rows), "rows"),
        ("mixed", graphs.mixed, tokens, "tokens"),
        ("piecewise", graphs.piecewise, tokens, "tokens"),
    )
    return "; ".join(
        f"{kind} of {formatted_sizes([graph.inputs.size for graph in kept])} {unit} "
        f"({len(kept)} of {len(captured)} kept)"
        for kind, kept, captured, unit in kinds
        if kept
    )


def formatted_sizes(sizes: Sequence[int]) -> str:
    """Rising sizes as text; three or more at even distances become a range."""
    parts: list[str] = []
    first = 0
    while first < len(sizes):
        last = _end_of_range(sizes, first)
        if last - first < 2:
            last = first
            parts.append(str(sizes[first]))
        else:
            distance = sizes[first + 1] - sizes[first]
            every = f" by {distance}" if distance > 1 else ""
            parts.append(f"{sizes[first]} to {sizes[last]}{every}")
        first = last + 1
    return ", ".join(parts)


def _end_of_range(sizes: Sequence[int], first: int) -> int:
    """The index of the last size such that all from `first` on are at even distances."""
    last = min(first + 1, len(sizes) - 1)
    distance = sizes[last] - sizes[first]
    while last + 1 < len(sizes) and sizes[last + 1] - sizes[last] == distance:
        last += 1
    return last
