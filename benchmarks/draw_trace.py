"""Draws a part of a trace of `penstock trace`, a row a stage. Needs matplotlib (extra `bench`)."""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

COLOURS = {
    "prefill": "#2a9d8f",
    "decode": "#4f7cac",
    "mixed": "#8a6fb0",
    "transfer": "#e9c46a",
    "waiting": "#f0a08f",
    "idle": "#dddddd",
}
COMPUTING = ("prefill", "decode", "mixed")

_STEPS_SHOWN = 24
_INCHES_WIDE, _INCHES_A_STAGE, _INCHES_AROUND = 12.0, 0.7, 1.6
_DOTS_AN_INCH = 120
_LEAST_LABELLED = 0.025
"""A slice narrower than this share of the picture has no room for its step's number."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a step on one stage. Times are in milliseconds since the trace began."""

    name: str
    start: float
    end: float
    step: int


@dataclass(frozen=True)
class Track:
    """One stage: what it is called, and what it did, in order."""

    name: str
    slices: list[Slice]

    def share(self, *names: str) -> float:
        """The part of the stage's time, from its first step to its last, in slices so named."""
        whole = self.slices[-1].end - self.slices[0].start
        return sum(part.end - part.start for part in self.slices if part.name in names) / whole


def read_tracks(file: Path, model: str | None = None) -> list[Track]:
    """The stages of one model of a trace: by default the first that ran a step.

    Raises SystemExit, with a line for a person, if there is none.
    """
    events = json.loads(file.read_bytes())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    stages = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    parts: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and model in (None, processes[event["pid"]]):
            parts[event["pid"], event["tid"]].append(event)
    if not parts:
        raise SystemExit(f"{file}: no steps{f' of {model}' if model else ''}")
    process = min(parts)[0]
    tracks = {key: found for key, found in sorted(parts.items()) if key[0] == process}
    first = min(event["ts"] for found in tracks.values() for event in found)
    return [Track(stages[key], list(_slices(found, first))) for key, found in tracks.items()]


def _slices(events: Sequence[dict[str, Any]], first: int) -> Iterator[Slice]:
    for event in events:
        start = (event["ts"] - first) / 1e3
        yield Slice(event["name"], start, start + event["dur"] / 1e3, event["args"]["step"])


def default_window(tracks: Sequence[Track]) -> tuple[float, float]:
    """Start and end of what is drawn unless somebody says otherwise: some steps of the middle."""
    last = tracks[-1].slices
    start, end = last[0].start, last[-1].end
    steps = len({part.step for part in last})
    length = (end - start) * min(_STEPS_SHOWN / steps, 1.0)
    return (start + end - length) / 2, (start + end + length) / 2


def draw(tracks: Sequence[Track], window: tuple[float, float], title: str, file: Path) -> None:
    """Draw what lies in `window` (milliseconds) to a PNG `file`."""
    mpl.use("agg")
    size = (_INCHES_WIDE, _INCHES_AROUND + _INCHES_A_STAGE * len(tracks))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    for row, track in enumerate(tracks):
        _draw_row(axes, row, [part for part in track.slices if _overlaps(part, window)], window)
    axes.set(xlim=window, ylim=(len(tracks) - 0.5, -0.5), xlabel="ms", title=title)
    axes.set_yticks(range(len(tracks)), [_label(track) for track in tracks])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    patches = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    figure.savefig(file, dpi=_DOTS_AN_INCH)
    plt.close(figure)


def _label(track: Track) -> str:
    shares = {name: track.share(name) for name in ("waiting", "transfer", "idle")}
    detail = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return f"{track.name}\nbusy {track.share(*COMPUTING):.1%}\n{detail}"


def _overlaps(part: Slice, window: tuple[float, float]) -> bool:
    return part.end > window[0] and part.start < window[1]


def _draw_row(axes: Any, row: int, parts: Sequence[Slice], window: tuple[float, float]) -> None:
    colours = [COLOURS[part.name] for part in parts]
    bars = [(part.start, part.end - part.start) for part in parts]
    axes.broken_barh(bars, (row - 0.35, 0.7), facecolors=colours, edgecolor="white", linewidth=0.4)
    for part in parts:
        start, end = max(part.start, window[0]), min(part.end, window[1])
        if part.name in COMPUTING and end - start > _LEAST_LABELLED * (window[1] - window[0]):
            middle = (start + end) / 2
            axes.text(middle, row, part.step, ha="center", va="center", color="white", fontsize=8)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draw_trace", description=__doc__)
    parser.add_argument("trace", type=Path, help="a file that `penstock trace` has written")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the PNG file to write")
    parser.add_argument("--model", help="default: the first that ran a step")
    parser.add_argument(
        "--window",
        nargs=2,
        type=float,
        metavar="MS",
        help="start and end of what is drawn, in milliseconds (default: some steps of the middle)",
    )
    parser.add_argument("--title", default="", help="default: none")
    options = parser.parse_args()
    tracks = read_tracks(options.trace, options.model)
    window = tuple(options.window) if options.window else default_window(tracks)
    draw(tracks, window, options.title, options.output)


if __name__ == "__main__":
    main()
