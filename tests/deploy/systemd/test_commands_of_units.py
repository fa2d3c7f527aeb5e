"""What the units run, in this system: started, reloaded and stopped as by systemd.

Its folders are the test's own; nothing here limits the processes.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.deploy.systemd.unit_file import NAMES, Unit, read_unit
from tests.e2e.daemon import free_port
from tests.patience import PATIENCE, wait_until

SETTINGS = "host: 127.0.0.1\nport: {port}\napi_key_files: [keys]\n"


class StartedUnit:
    """A unit's main process, with `%C`, `%t` and /etc/penstock in `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.unit: Unit = read_unit(name)
        self._paths = {"%N": name, "%C": f"{folder}/cache", "%t": f"{folder}/run"}
        self._paths |= {"/etc/penstock": f"{folder}/etc", "/opt/penstock/bin/": ""}
        assert self.unit["CacheDirectory"] == ["penstock"]
        assert self.unit["RuntimeDirectory"] == ["%N"]
        for made in ("etc", "cache/penstock", f"run/{name}"):
            (folder / made).mkdir(parents=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.keys = folder / "etc" / "keys"
        self.keys.write_text("first\n")
        (folder / "etc" / f"{name}.yaml").write_text(SETTINGS.format(port=port))
        programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        (lines,) = self.unit["Environment"]
        self.environment = programs | dict(
            line.split("=", 1) for line in shlex.split(self._here(lines))
        )
        (start,) = self.unit["ExecStart"]
        self._command = shlex.split(self._here(start))

    def __enter__(self) -> "StartedUnit":
        self.process = subprocess.Popen(self._command, env=self.environment, cwd=self._working)
        try:
            wait_until(lambda: self._status("/health/ready") == 200)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0

    def reload(self) -> None:
        (command,) = self.unit["ExecReload"]
        words = shlex.split(command.replace("$MAINPID", str(self.process.pid)))
        subprocess.run(words, timeout=PATIENCE, check=True)

    def accepts(self, key: str) -> bool:
        """Whether requests with this key are answered."""
        return self._status("/v1/models", key) == 200

    @property
    def _working(self) -> str:
        (folder,) = self.unit["WorkingDirectory"]
        return self._here(folder)

    def _here(self, text: str) -> str:
        for path, own in self._paths.items():
            text = text.replace(path, own)
        return text

    def _status(self, path: str, key: str = "none") -> int | None:
        assert self.process.poll() is None
        try:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.get(self.url + path, headers=headers).status_code
        except httpx.TransportError:
            return None


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Generator[StartedUnit]:
    with StartedUnit("penstock", tmp_path_factory.mktemp("unit")) as unit:
        yield unit


def test_a_reload_reads_the_keys_again(started: StartedUnit) -> None:
    assert started.accepts("first")
    started.keys.write_text("second\n")
    assert not started.accepts("second")
    started.reload()
    wait_until(lambda: started.accepts("second"))
    assert not started.accepts("first")


def test_trace_finds_the_daemon(started: StartedUnit, tmp_path: Path) -> None:
    """By TMPDIR alone, as docs/one-host.md says."""
    trace = tmp_path / "trace.json"
    subprocess.run(
        ["penstock", "trace", "--seconds", "0.2", "-o", trace],
        env=started.environment,
        timeout=60,
        check=True,
    )
    assert trace.stat().st_size


@pytest.mark.parametrize("name", NAMES)
def test_bad_usage_is_not_restarted(name: str) -> None:
    (never,) = read_unit(name)["RestartPreventExitStatus"]
    command = [sys.executable, "-P", "-m", "server", "serve", "--no-such-flag"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == int(never)
