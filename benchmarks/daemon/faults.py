"""`python -m benchmarks.daemon.faults`: each kind of process gets SIGKILL, SIGSTOP and SIGTERM.

Each fault has a daemon of its own with the demo models, four requests at work and a batch. The
table says what each of them got, how the daemon ended or that it goes on, and what was left: live
processes and private files. After an end the daemon is started again and finishes the batch.
"""

import argparse
import json
import os
import re
import signal
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.attacks.target import EMBEDDER, GENERATOR
from benchmarks.daemon.process_stats import children_of, family_of
from benchmarks.daemon.running_daemon import RunningDaemon, running_daemon
from server.bench.machine import this_machine

_STALL_SECONDS, _WATCHED_SECONDS = 5, 25.0
_SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
_PARTS = {
    "supervisor": "",
    "API process": "server.daemon.api_process",
    "engine core": "engine_core",
    "worker": "workers",
    "template process": "server.templates.template_main",
    "batch process": "server.batches.batch_process",
}
_PROMPT = {"model": GENERATOR, "prompt": "The function", "max_tokens": 700, "ignore_eos": True}
_CHAT = {
    "model": GENERATOR,
    "max_tokens": 1,
    # It is long with its template, and then cut.
    "messages": [{"role": "user", "content": "a"}] * 50_000,
    "truncate_prompt_tokens": -1,
}
_LINES = 300


_COLUMNS = (
    "part", "signal", "answer", "stream", "chat", "embedding", "end", "left", "batch",
)  # fmt: skip


class _Asked:
    """A request in a thread of its own, and what it got."""

    def __init__(self, url: str, path: str, body: Mapping[str, Any]) -> None:
        self.got = "nothing"
        self._thread = threading.Thread(target=self._ask, args=(url + path, body), daemon=True)
        self._thread.start()

    def _ask(self, url: str, body: Mapping[str, Any]) -> None:
        try:
            with httpx.stream("POST", url, json=body, timeout=120) as answer:
                text = answer.read().decode()
                self.got = _seen(answer.status_code, text)
        except httpx.HTTPError:
            self.got = "broken off"

    def wait(self, deadline: float) -> str:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return self.got


def main() -> None:
    """Fault after fault, each a line of the table as soon as it is over."""
    options = _parser().parse_args()
    print(this_machine().header())
    print("| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|")
    for part in _PARTS:
        for number in _SIGNALS:
            if not options.only or part in options.only:
                print("| " + " | ".join(_tried(part, number)) + " |", flush=True)


def _tried(part: str, number: signal.Signals) -> list[str]:
    """A line of the table, without its ends."""
    with TemporaryDirectory() as folder:
        with _daemon(folder) as daemon:
            batch = _new_batch(daemon.url)
            asked = _at_work(daemon)
            processes = family_of(daemon.pid)
            os.kill(_pid_of(part, daemon), number)
            signalled = time.monotonic()
            code = daemon.exit_code(_WATCHED_SECONDS)
            seconds = time.monotonic() - signalled
            got = [request.wait(signalled + 2 * _WATCHED_SECONDS) for request in asked]
            if code is None:
                state = _batch_state(daemon.url, batch)
                _continued(processes)
                return [part, number.name, *got, "goes on", "", state]
        time.sleep(1)  # who has just lost his parent may end
        live, files = sum(map(_is_alive, processes)), _private_files(folder)
        for file in files:
            os.utime(file, (0, 0))  # those of a minute ago may be about to be locked
        with _daemon(folder) as again:
            state = _batch_state(again.url, batch) + ", after a restart"
            swept = files - _private_files(folder)
    left = f"{live} processes, {len(files)} files" + f" ({len(swept)} swept at the next start)"
    return [part, number.name, *got, f"{code} after {seconds:.1f} s", left, state]


def _private_files(folder: str) -> set[Path]:
    return set(Path(folder, "private").rglob("*"))


@contextmanager
def _daemon(folder: str) -> Generator[RunningDaemon]:
    """One with a state folder and a folder of private files of its own."""
    private = Path(folder, "private")
    private.mkdir(exist_ok=True)
    words = ("--threads", "1", "--state-dir", str(Path(folder, "state")))
    environment = {**os.environ, "TMPDIR": str(private)}
    stall = ("--stall-timeout", str(_STALL_SECONDS))
    with running_daemon(*words, *stall, environment=environment) as daemon:
        yield daemon


def _pid_of(part: str, daemon: RunningDaemon) -> int:
    """The first process of its kind."""
    if not (module := _PARTS[part]):
        return daemon.pid
    parents = [daemon.pid, *children_of(daemon.pid)]
    return next(pid for p in parents for pid, name in children_of(p).items() if name == module)


def _new_batch(url: str) -> str:
    body = {"model": EMBEDDER, "input": "The gate opens, water falls, and the turbine turns."}
    line = {"method": "POST", "url": "/v1/embeddings", "body": body}
    lines = [json.dumps({**line, "custom_id": str(number)}) for number in range(_LINES)]
    files = {"file": ("lines.jsonl", "\n".join(lines).encode())}
    file = httpx.post(f"{url}/v1/files", data={"purpose": "batch"}, files=files).json()["id"]
    order = {"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return httpx.post(f"{url}/v1/batches", json=order).json()["id"]


def _at_work(daemon: RunningDaemon) -> list[_Asked]:
    """Four requests: two that generate, and two that have just been sent."""
    asked = [
        _Asked(daemon.url, "/v1/completions", _PROMPT),
        _Asked(daemon.url, "/v1/completions", {**_PROMPT, "stream": True}),
    ]
    deadline = time.monotonic() + 30
    while _running_rows(daemon.url) < len(asked) and time.monotonic() < deadline:
        time.sleep(0.05)
    asked.append(_Asked(daemon.url, "/v1/chat/completions", _CHAT))
    texts = {"model": EMBEDDER, "input": [f"The gate opens {n} times." for n in range(256)]}
    return [*asked, _Asked(daemon.url, "/v1/embeddings", texts)]


def _running_rows(url: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    found = re.search(
        rf'^penstock_engine_running_rows{{model="{GENERATOR}"}} (\S+)$', text, re.MULTILINE
    )
    return float(found[1]) if found else 0.0


def _batch_state(url: str, batch: str) -> str:
    """How it ended, or stands after half a minute."""
    state: dict[str, Any] = {"status": "unknown"}
    deadline = time.monotonic() + 30
    while state["status"] not in {"completed", "failed"} and time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            state = httpx.get(f"{url}/v1/batches/{batch}", timeout=10).json()
        time.sleep(0.2)
    counts = state.get("request_counts", {})
    return f"{state['status']}, {counts.get('completed', 0)} of {_LINES}"


def _seen(status: int, text: str) -> str:
    """The status, and the code of an error; one in a stream came after its 200."""
    found = re.search(r'"error": ?\{.*?"code": ?"([^"]+)"', text)
    whole = "" if found or not text.startswith("data: ") else " whole" * text.endswith("[DONE]\n\n")
    return f"{status}{whole}" + (f" {found[1]}" if found else "")


def _continued(processes: list[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(_PARTS), help="these (default: all)")
    return parser


if __name__ == "__main__":
    main()
