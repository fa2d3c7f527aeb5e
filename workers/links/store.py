"""The store by which process groups find each other, in the engine core's memory.

The engine core's end is `engine_core/executor/rendezvous.py`.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self, TypeVar

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from workers.contract.messages import StoreAnswer, StoreCall
from workers.links.engine_link import EngineLink

_RETRY_SECONDS = 0.01

T = TypeVar("T")


class EngineStore(Store):
    """A `torch.distributed.Store` over a link of its own. Any thread may call it: NCCL's watchdogs
    do, as long as the process lives.

    Process groups keep what torch makes of it in C++, and not this object, which must live as long.
    """

    timeout: timedelta
    """Torch's own, which `set_timeout` sets: five minutes at first."""

    def __init__(self, engine: EngineLink) -> None:
        super().__init__()
        self._engine, self._turn = engine, threading.Lock()

    def clone(self) -> Self:
        return self

    def set(self, key: str, value: str | bytes) -> None:
        self._call(StoreCall("set", key, _bytes(value)))

    def get(self, key: str) -> bytes:
        """The value, once it is set. Raises DistStoreError after `timeout`."""
        call = StoreCall("get", key)
        return self._awaited(lambda: self._call(call), [key], self.timeout)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all are set. Raises DistStoreError after `timeout`, by default the store's."""
        call = StoreCall("check", keys=keys)
        longest = self.timeout if timeout is None else timeout
        self._awaited(lambda: self._call(call) or None, keys, longest)

    def check(self, keys: list[str]) -> bool:
        return bool(self._call(StoreCall("check", keys=keys)))

    def compare_set(
        self, key: str, expected_value: str | bytes, desired_value: str | bytes
    ) -> bytes:
        expected, desired = _bytes(expected_value), _bytes(desired_value)
        return self._call(StoreCall("compare_set", key, desired, expected))

    def add(self, key: str, value: int) -> int:
        return self._call(StoreCall("add", key, amount=value))

    # The names by which torch calls the two from C++, and so by which it has them called.

    def deleteKey(self, key: str) -> bool:  # noqa: N802
        return bool(self._call(StoreCall("delete", key)))

    def getNumKeys(self) -> int:  # noqa: N802
        return self._call(StoreCall("num_keys"))

    def _call(self, call: StoreCall) -> Any:
        with self._turn:
            self._engine.send(call)
            answer = self._engine.receive()
        assert isinstance(answer, StoreAnswer), f"unexpected {answer!r}"
        return answer.value

    def _awaited(self, ask: Callable[[], T | None], keys: list[str], timeout: timedelta) -> T:
        until = time.monotonic() + timeout.total_seconds()
        while (found := ask()) is None:
            if time.monotonic() > until:
                raise DistStoreError(f"no {', '.join(keys)} after {timeout.total_seconds():g} s")
            time.sleep(_RETRY_SECONDS)
        return found


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
