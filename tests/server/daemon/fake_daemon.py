"""A supervisor over throw-away children instead of engines and servers."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from server.daemon.parts import Part, Role, RunningPart
from server.daemon.supervisor import Hangup, Moments, Supervisor
from server.models.model_files import ModelFiles
from server.settings.settings import ServerConfig

CHILD = """
import os, pathlib, signal, sys, time
folder, name, on_terminate = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
signals = 0
def reload(*_):
    with (folder / "reloads").open("a") as reloads:
        reloads.write(name + "\\n")
if name.startswith("api"):
    signal.signal(signal.SIGHUP, reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
def terminate(*_):
    global signals
    signals += 1
    if on_terminate == "ignore" or (on_terminate == "never" and signals == 1):
        return
    if on_terminate != "never":
        time.sleep(float(on_terminate))
    with (folder / "diary").open("a") as diary:
        diary.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGUSR1 if name.startswith("api") else signal.SIGTERM, terminate)
(folder / f"{name}.new").write_text(f"{os.getpid()} {os.getsid(0)}")
(folder / f"{name}.new").rename(folder / name)
while sys.stdin.read():
    pass
"""


class FakeDaemon:
    """Children that write who they are into a folder, and a supervisor over them. `log` is a
    test's `caplog`."""

    def __init__(self, folder: Path, log: Any = None) -> None:
        self.folder, self.log = folder, log
        self.parts: list[Part] = []

    def add(self, name: str, role: Role, on_terminate: str = "0", model: str = "the model") -> None:
        """A child that on its signal to stop works for so many seconds, or "never" ends what it
        does before a second one, or does "ignore" it. Engines and workers are of `model`."""
        self.add_program(name, role, CHILD, on_terminate, model=model)

    def add_all(self, **on_terminate: str) -> None:
        """A child of each of these roles, which is its name."""
        for role, does in on_terminate.items():
            self.add(role, cast("Role", role), does)

    def add_models(self, *names: str) -> None:
        """An engine and its worker of each."""
        for name in names:
            self.add(f"engine of {name}", "engine", model=name)
            self.add(f"worker of {name}", "worker", model=name)

    def add_program(
        self,
        name: str,
        role: Role,
        program: str,
        *arguments: str,
        model: str = "the model",
        spared: bool = False,
    ) -> None:
        """A child that runs a program of its own, and perhaps a spare of it."""
        command = [sys.executable, "-I", "-S", "-c", program, str(self.folder), name, *arguments]
        own = None if role in ("api", "batch") else model
        variables = dict(os.environ)
        part = Part(
            title=name,
            role=role,
            model=own,
            command=command,
            environment=variables,
            spared=spared,
        )
        self.parts.append(part)

    def pid(self, name: str) -> int:
        return int((self.folder / name).read_text().split()[0])

    def kill(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGKILL)

    def diary(self, name: str = "diary") -> list[str]:
        """Who ended by a signal to stop, in order; of "reloads", who was told to reload."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    async def run(
        self,
        when_ready: Callable[[], None],
        startup: float = 60.0,
        drain: float = 30.0,
        stall: float = 0.0,
        restarts: int = 0,
        on_started: Callable[[Sequence[RunningPart]], None] = lambda _: None,
        files: Mapping[str, ModelFiles] | None = None,
    ) -> int:
        """One life of the supervisor; ready means that every child is up. Without `restarts` it
        ends with the first loss."""

        async def until_ready() -> None:
            titles = [part.title for part in self.parts]
            while not all((self.folder / title).exists() for title in titles):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        config = ServerConfig(
            models=(),
            startup_timeout=startup,
            drain_timeout=drain,
            stall_timeout=stall,
            max_restarts=restarts,
        )
        moments = Moments(
            until_ready=until_ready, on_started=on_started, on_ready=lambda _: when_ready()
        )
        return await Supervisor(self.parts, config, Hangup(), moments, files=files or {}).run()
