"""Children of the daemon must not outlive it, even when it is killed outright."""

import os
import sys
import threading


def exit_with_parent() -> None:
    """End this process when its standard input closes.

    The supervisor holds the other end of that pipe and never writes; the kernel closes it when
    the supervisor dies, however it dies.
    """

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
