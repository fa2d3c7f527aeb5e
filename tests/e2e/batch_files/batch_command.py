"""`penstock batch` in a test, and files for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

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


def started(source: Path, output: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "server", "batch", "-i", str(source), "-o", str(output)]
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )


def finished(source: Path, output: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error."""
    process = started(source, output, *arguments)
    try:
        said, complained = process.communicate(timeout=100)
    finally:
        process.kill()
    return process.returncode, said, complained
