"""Tasks and child processes of an event loop."""

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from workers.contract.process import BEAT_SECONDS, Heartbeat, end_process

_ResultT = TypeVar("_ResultT")


def lasting_task(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    """Start a task that only ends when it has done its work, or is cancelled. An exception ends the
    process: nobody waits for the task, and would see it."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_end_process)
    return task


def _end_process(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(f"task {task.get_name()}", error)


async def until_first(*waits: Awaitable[object]) -> None:
    """Until one of them is over. The others are cancelled. Raises what that one has raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for task in done:
        task.result()


async def in_thread(work: Callable[[], _ResultT]) -> _ResultT:
    """The result of blocking `work`, for which the process's end does not wait."""
    result: Future[_ResultT] = Future()
    result.set_running_or_notify_cancel()  # whoever waits may go, and it runs on

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, name="blocking work", daemon=True).start()
    return await asyncio.wrap_future(result)


async def keep_beating() -> None:
    """Send a heartbeat every BEAT_SECONDS, until cancelled."""
    heartbeat = Heartbeat()
    while True:
        heartbeat.beat()
        await asyncio.sleep(BEAT_SECONDS)


@contextmanager
def first_error(*kinds: type[Exception]) -> Generator[None]:
    """Raise the first error alone where an `asyncio.TaskGroup` failed with these `kinds` only. One
    raised in an `except*` block is in a group in some releases of Python (3.11.2)."""
    try:
        yield
    except BaseExceptionGroup as group:
        matching, others = group.split(kinds)
        if matching is None or others is not None:
            raise
        raise _first_of(matching) from None


async def all_of(
    work: Iterable[Coroutine[object, object, _ResultT]], *kinds: type[Exception]
) -> list[_ResultT]:
    """Run all of `work` at once, begun in order. The first error ends the rest, and is raised alone
    if all are of these `kinds`."""
    with first_error(*kinds):
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(each) for each in work]
    return [each.result() for each in running]


def _first_of(group: BaseExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


class ChildProcess:
    """A running child in a session of its own: a terminal's Ctrl-C reaches only its parent.

    Its standard input is one end of a socket pair whose other end is `socket` (not blocking). The
    kernel closes ours when this process ends, and the child then exits. `exit` becomes its status.
    Signals go through a pidfd, which can never mean another process.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        pass_fds: Sequence[int] = (),
        answers: bool = False,
    ) -> None:
        """Start it. `pass_fds` stay open in it; if it `answers`, its standard output is the same
        socket. Raises OSError."""
        self.socket, theirs = socket.socketpair()
        try:
            self.socket.setblocking(False)
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno() if answers else None,
                    start_new_session=True,
                    pass_fds=pass_fds,
                )
            try:
                self._pidfd = os.pidfd_open(self._process.pid)
            except OSError:  # no file descriptor is left
                self._process.kill()
                self._process.wait()
                raise
        except OSError:
            self.socket.close()
            raise
        self.pid = self._process.pid
        """Its process id, which another process may have once it has exited."""
        self.exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.exit.get_loop().add_reader(self._pidfd, self._on_exit)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has exited."""
        if not self.exit.done():
            signal.pidfd_send_signal(self._pidfd, number)

    def end(self) -> str:
        code = self.exit.result()
        killer = {each.value: each.name for each in signal.Signals}.get(-code, f"signal {-code}")
        return f"exited with status {code}" if code >= 0 else f"was killed by {killer}"

    def _on_exit(self) -> None:
        self.exit.get_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.exit.set_result(self._process.wait())
