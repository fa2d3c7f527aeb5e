"""The store by which process groups find each other does as torch's own do, through torch's C++."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import msgspec
import pytest
import zmq
from torch.distributed import (
    DistStoreError,
    HashStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.distributed_c10d import PrefixStore, Store

from engine_core.executor.rendezvous import RendezvousStore
from tests.engine_core.configs import execution_config
from tests.patience import PATIENCE
from workers.contract.messages import StoreCall
from workers.links.engine_link import EngineLink
from workers.links.store import EngineStore

SHORT, LONG = timedelta(seconds=0.1), timedelta(seconds=PATIENCE)


class Core:
    """Answers the stores of stages as an engine core does, in a thread."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._config = execution_config(worker_endpoint=f"tcp://127.0.0.1:{port}")
        self._stores: list[EngineStore] = []  # torch keeps none alive, and a socket is closed last
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def store(self, stage: int) -> EngineStore:
        store = EngineStore(EngineLink(self._context, self._config, stage, "store"))
        self._stores.append(store)
        return store

    def close(self) -> None:
        self.store(99).set("", "the end")
        self._thread.join()
        self._context.destroy(0)

    def _serve(self) -> None:
        own, name = RendezvousStore(), b""
        while name != b"store-99-0":
            name, frame = self._router.recv_multipart()
            call = msgspec.msgpack.decode(frame, type=StoreCall)
            self._router.send_multipart([name, msgspec.msgpack.encode(own.answer(call))])


@pytest.fixture
def core() -> Iterator[Core]:
    core = Core()
    yield core
    core.close()


def use(store: Store) -> Iterator[object]:
    """The answers to calls of all kinds."""
    store.set("a", "first")
    store.set("a", "second")
    yield store.get("a")
    store.set("all bytes", bytes(range(256)))  # pyright: ignore[reportArgumentType]
    yield store.get("all bytes")
    yield store.add("count", 3), store.add("count", -5), store.get("count")
    yield store.check(["a", "count"]), store.check(["a", "b"]), store.check([])
    yield store.num_keys()
    yield store.compare_set("a", "first", "third"), store.get("a")
    yield store.compare_set("a", "second", "third"), store.get("a")
    yield store.compare_set("b", "any", "more"), store.check(["b"])
    yield store.compare_set("b", "", "more"), store.get("b")
    yield store.delete_key("b"), store.delete_key("b"), store.check(["b"])
    store.wait(["a", "count"])
    store.wait(["a", "count"], SHORT)
    copy = store.clone()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    yield copy.get("a")


def test_each_call_does_as_torchs_store_in_memory(core: Core) -> None:
    """Torch's PrefixStore calls from C++, as process groups do."""
    expected = list(use(PrefixStore("p", HashStore())))
    assert len(set(map(str, expected))) > 10
    store = core.store(0)
    assert list(use(PrefixStore("p", store))) == expected
    assert list(use(PrefixStore("other", store)))[:3] == expected[:3]
    assert core.store(1).get("p/a") == b"third"


@pytest.mark.parametrize("call", [lambda store: store.get("k"), lambda store: store.wait(["k"])])
def test_a_key_is_awaited_and_no_longer_than_the_timeout(
    core: Core, call: Callable[[Store], object]
) -> None:
    waiting, other = core.store(0), core.store(1)
    waiting.set_timeout(SHORT)
    begun = time.monotonic()
    with pytest.raises(DistStoreError, match=r"no p/k after 0\.1 s"):
        call(PrefixStore("p", waiting))
    assert time.monotonic() - begun >= SHORT.total_seconds()
    waiting.set_timeout(LONG)
    with ThreadPoolExecutor(1) as thread:
        awaited = thread.submit(call, PrefixStore("p", waiting))
        time.sleep(SHORT.total_seconds())
        assert not awaited.done()
        # The thread that waits holds nothing that another needs.
        assert not waiting.check(["p/k"])
        other.set("p/k", "found")
        awaited.result(PATIENCE)


def test_threads_get_their_own_answers(core: Core) -> None:
    store = PrefixStore("p", core.store(0))

    def count(name: str) -> list[int]:
        return [store.add(name, 1) for _ in range(200)]

    with ThreadPoolExecutor(8) as threads:
        counted = list(threads.map(count, map(str, range(8))))
    assert counted == [list(range(1, 201))] * 8
