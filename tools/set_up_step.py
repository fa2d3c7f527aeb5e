"""`python tools/set_up_step.py TITLE PIP...`: run pip, and show one line in place of its output.

On a terminal the line follows the work. If pip fails, all that it said is shown.
"""

import subprocess
import sys
import time
from queue import Empty, SimpleQueue
from threading import Thread

_SHOWN = ("Collecting", "Downloading", "Building", "Installing")
_WIDTH = 79


def main() -> int:
    """Return the exit code of the command."""
    title, *command = sys.argv[1:]
    lines: SimpleQueue[str | None] = SimpleQueue()
    process = subprocess.Popen(
        [*command, "--progress-bar", "off"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    Thread(target=_read, args=(process, lines), daemon=True).start()
    began = time.monotonic()
    said = _followed(title, began, lines)
    code = process.wait()
    result = "done" if code == 0 else "failed"
    _show(f"{title}: {result} after {time.monotonic() - began:.0f} s", end="\n")
    if code:
        print(said, end="", flush=True)
    return code


def _read(process: subprocess.Popen[str], lines: SimpleQueue[str | None]) -> None:
    for line in process.stdout or ():
        lines.put(line)
    lines.put(None)


def _followed(title: str, began: float, lines: SimpleQueue[str | None]) -> str:
    """All lines until the None, while what pip does is shown on a terminal, with the seconds."""
    said = doing = ""
    while True:
        try:
            line = lines.get(timeout=1)
        except Empty:
            line = ""
        if line is None:
            return said
        said += line
        if line.startswith(_SHOWN):
            doing = line.strip()
        if sys.stdout.isatty():
            _show(f"{title}: {time.monotonic() - began:.0f} s {doing}", end="")


def _show(text: str, end: str) -> None:
    """Over the line that is there, on a terminal."""
    terminal = sys.stdout.isatty()
    print(f"\r{text[:_WIDTH]:{_WIDTH}}" if terminal else text, end=end, flush=True)


if __name__ == "__main__":
    sys.exit(main())
