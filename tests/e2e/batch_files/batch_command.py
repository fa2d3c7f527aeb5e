"""`penstock batch` in a test, and files for it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE, wait_until

SYSTEM = "Gate: water falls from the gate into the turbine below, and the turbine turns. " * 8


def request(custom_id: str, url: str, **body: object) -> dict[str, object]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def completion(number: int, **options: object) -> dict[str, object]:
    prompt = f"{SYSTEM}Question {number}: why?"
    body = {"max_tokens": 4, "temperature": 0, **options}
    return request(f"c{number}", "/v1/completions", prompt=prompt, **body)


def write_lines(file: Path, *lines: object) -> Path:
    """Each line as it is, or as JSON."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


def read_lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(text) for text in file.read_text().splitlines()]


class BatchProcess:
    """`penstock batch`; leaving the block kills it."""

    def __init__(self, source: Path, output: Path, *arguments: str) -> None:
        files = ["-i", str(source), "-o", str(output)]
        self.part = output.with_name(f"{output.name}.part")
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "server", "batch", *files, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        self.pid = self._popen.pid

    def __enter__(self) -> "BatchProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.kill()
        self._popen.communicate()

    def wait_for_results(self, count: int) -> None:
        """Until so many are in the log, or the process has ended."""
        wait_until(lambda: records(self.part) >= count or self._popen.poll() is not None)

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Wait for its end, after a signal if there is one: exit code, standard output, standard
        error."""
        if number is not None:
            self._popen.send_signal(number)
        said, complained = self._popen.communicate(timeout=PATIENCE)
        return self._popen.returncode, said, complained


def records(part: Path) -> int:
    """Results in the log that are whole."""
    return max(0, part.read_bytes().count(b"\n") - 1) if part.exists() else 0


def finished(source: Path, output: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error."""
    with BatchProcess(source, output, *arguments) as process:
        return process.end()
