"""Asking engines for a trace; tests/e2e/life/test_trace.py asks a real daemon."""

from pathlib import Path

import msgspec
import pytest

from engine_core.client.trace_client import trace_engines


def test_an_interrupt_before_all_is_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket that is open then does not hold the end up."""

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(msgspec.msgpack, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trace_engines({"model": f"ipc://{tmp_path}/engine"}, 60)
