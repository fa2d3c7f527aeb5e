"""Every API process has a chat template's process of its own, and starts it again."""

import os
import signal

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, children_of, is_alive, running
from tests.patience import PATIENCE, wait_until


def templates(daemon: Daemon) -> dict[int, list[int]]:
    """The pids of templates' processes by those of their API processes."""
    return {
        api: children_of(api).get("server.templates.template_main", [])
        for api in daemon.children()["server.daemon.api_process"]
    }


@pytest.mark.long
def test_each_of_two_api_processes_starts_its_own_again() -> None:
    generator = str(demo_models()[GENERATOR_NAME])
    with running(generator, "--api-workers", "2", "--threads", "1") as daemon:
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        before = templates(daemon)
        assert [len(pids) for pids in before.values()] == [1, 1]
        killed = [pid for (pid,) in before.values()]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        # Each request has a connection of its own, which either process may accept.
        statuses = [
            httpx.post(f"{daemon.url}/v1/chat/completions", json=chat, timeout=PATIENCE).status_code
            for _ in range(20)
        ]
        assert statuses == [200] * 20
        wait_until(lambda: all(templates(daemon).values()))
        after = templates(daemon)
        assert after.keys() == before.keys()
        assert [len(pids) for pids in after.values()] == [1, 1]
        assert not any(map(is_alive, killed))
        said = [line for line in daemon.log if "starting it again" in line]
        assert len(said) == 2
        assert "its process was killed by SIGKILL" in said[0]
