"""The captured steps of a stage in one line of the log."""

from collections.abc import Sequence

from workers.graphs.graph_selection import StageGraphs


def summary(graphs: StageGraphs, rows: Sequence[int], tokens: Sequence[int]) -> str:
    """Which sizes were kept of each kind: of decode steps of `rows` that were captured, and of
    steps with prompts of `tokens`."""
    kinds = (
        ("decode steps", graphs.decodes, rows, "rows"),
        ("steps with prompts, whole,", graphs.whole, tokens, "tokens"),
        ("steps with prompts, without attention,", graphs.pieces, tokens, "tokens"),
    )
    return "; ".join(
        f"{kind} of {spelled([graph.inputs.size for graph in kept])} {unit} "
        f"({len(kept)} of {len(captured)} kept)"
        for kind, kept, captured, unit in kinds
        if kept
    )


def spelled(sizes: Sequence[int]) -> str:
    """Rising sizes in words; three or more at even distances as a range."""
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
    """The index of the last size up to which they are at even distances from `first` on."""
    last = min(first + 1, len(sizes) - 1)
    distance = sizes[last] - sizes[first]
    while last + 1 < len(sizes) and sizes[last + 1] - sizes[last] == distance:
        last += 1
    return last
