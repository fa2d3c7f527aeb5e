"""Which sizes of steps are captured in CUDA graphs."""

from collections.abc import Sequence

from workers.device.tuning import (
    DECODE_GRAPH_ROWS,
    DECODE_GRAPH_STRIDE,
    GROUPED_GRAPH_ROWS,
    PROMPT_GRAPH_TOKENS,
)


def decode_graph_sizes(max_rows: int) -> list[int]:
    """Rows of the decode steps to capture, rising, the last being `max_rows`."""
    stride = DECODE_GRAPH_STRIDE
    coarse = range(DECODE_GRAPH_ROWS[-1] + stride, max_rows + stride, stride)
    return [*(rows for rows in (*DECODE_GRAPH_ROWS, *coarse) if rows < max_rows), max_rows]


def grouped_graph_sizes(rows: Sequence[int]) -> list[int]:
    """Those of the captured `rows` that are captured with shared prefixes, too: so coarse that
    start-up takes little longer. A few rows more cost less than attention saves."""
    return [
        count
        for count in rows
        if count in GROUPED_GRAPH_ROWS or count % DECODE_GRAPH_STRIDE == 0 or count == rows[-1]
    ]


def prompt_graph_sizes(max_tokens: int) -> list[int]:
    """Tokens of the steps with prompts to capture, rising, none above `max_tokens`."""
    return [tokens for tokens in PROMPT_GRAPH_TOKENS if tokens <= max_tokens]
