"""Asking engines for a trace; tests/e2e/life/test_trace.py asks a real daemon."""

import threading
from pathlib import Path

import msgspec
import pytest

from engine_core.client.trace_client import trace_engines
from tests.patience import PATIENCE


def test_an_interrupt_before_all_is_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket that is open then does not hold the end up."""
    ended: list[BaseException] = []

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    def trace() -> None:
        try:
            trace_engines({"model": f"ipc://{tmp_path}/engine"}, 60)
        except KeyboardInterrupt as interrupt:
            ended.append(interrupt)

    monkeypatch.setattr(msgspec.msgpack, "encode", interrupted)
    thread = threading.Thread(target=trace, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert ended
