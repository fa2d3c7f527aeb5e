"""Children of the daemon must not outlive it, even when it is killed outright."""

import os
import threading

_STDIN = 0


def exit_with_parent() -> None:
    """End this process when its standard input closes.

    The supervisor holds the other end of that pipe and never writes; the kernel closes it when
    the supervisor dies, however it dies.
    """

    def watch() -> None:
        # Not sys.stdin: a thread that holds its lock cannot be ended with the interpreter.
        while os.read(_STDIN, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
