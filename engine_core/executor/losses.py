"""Which stage was lost first: one that goes takes its neighbours with it."""

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine_core.transport import is_readable
from workers.contract.messages import WorkerFailed


class Losses:
    """What is known of the stages that are lost.

    A process that is killed says nothing. The kernel closes its connection, which ZMQ reports by
    its file descriptor; a neighbour may find its own link to that stage broken before.
    """

    def __init__(self, socket: zmq.Socket[bytes], model: str) -> None:
        """Watches the connections of `socket`; call before it is bound."""
        self.monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket = socket
        self._model = model
        self._stages: dict[int, int] = {}  # file descriptor -> stage
        self._gone: list[int] = []
        self._failures: dict[int, WorkerFailed] = {}

    def connected(self, stage: int, descriptor: int) -> None:
        """A connection of `stage` has this file descriptor."""
        self._stages[descriptor] = stage

    def failed(self, failure: WorkerFailed) -> None:
        """A stage has sent its last words."""
        self._failures.setdefault(failure.stage, failure)

    def unreachable(self, stage: int) -> None:
        """Nothing can be sent to `stage`, and maybe to others that went before."""
        self.read()
        self._gone.append(stage)

    def read(self) -> None:
        """Take notice of the connections that have been closed."""
        while is_readable(self.monitor):
            descriptor = recv_monitor_message(self.monitor)["value"]
            if descriptor in self._stages:
                self._gone.append(self._stages[descriptor])

    def cause(self) -> str | None:
        """Why the model is lost; None if all that is known may be a consequence of something
        else."""
        for failure in self._failures.values():
            if not failure.neighbour_lost:
                return _said(failure)
        silent = [stage for stage in self._gone if stage not in self._failures]
        return f"worker {silent[0]} of {self._model} has gone" if silent else None

    def guess(self) -> str:
        """Like `cause`, if that remains unknown."""
        words = next(iter(self._failures.values()), None)
        return _said(words) if words is not None else f"a worker of {self._model} has gone"

    def close(self) -> None:
        """Stop watching."""
        self._socket.disable_monitor()
        self.monitor.close(0)


def _said(failure: WorkerFailed) -> str:
    return f"stage {failure.stage}: {failure.message}"
