"""Pictures of figures, as SVG or PNG. Needs matplotlib (extra `bench`)."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes


@contextmanager
def picture(file: Path, *, rows: int = 1, height: float) -> Generator[list[Axes]]:
    """Axes of `rows` plots, one above the other over the same x, in which the block draws. Written
    to `file`, in the format of its ending, with a grid and a legend each. Inches are 8 by `height`.
    """
    mpl.use("agg")
    # Text as text, and the same picture for the same figures.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "penstock"})
    figure, axes = plt.subplots(
        rows, figsize=(8.0, height), sharex=True, layout="constrained", squeeze=False
    )
    each = [*axes[:, 0]]
    yield each
    for own in each:
        own.grid(visible=True, axis="y", alpha=0.3)
        own.legend(frameon=False)
    figure.savefig(file, dpi=120, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)
