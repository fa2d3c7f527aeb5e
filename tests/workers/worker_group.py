"""Real worker processes under a test that plays their supervisor and their engine core."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import zmq

import workers
from engine_core.executor.partition import stage_shares
from engine_core.executor.rendezvous import RendezvousStore
from tests.e2e.daemon import free_port
from tests.workers.checkpoints import with_execution
from workers.contract.config import WorkerConfig
from workers.contract.curve import ClusterKeys
from workers.contract.messages import (
    AllocateKV,
    FromWorker,
    StageReport,
    StepInput,
    StepOutput,
    StoreCall,
    ToWorker,
    WorkerBeat,
    WorkerConnected,
    WorkerFailed,
    WorkerLoaded,
    WorkerReady,
)
from workers.contract.process import NO_MULTICAST
from workers.contract.share import Share

TIMEOUT_MS = 60_000
KEYS = ClusterKeys.of(b"the secret of the workers")


class WorkerGroup:
    """One process a stage of `config`, started on entry and killed on exit.

    With `nodes`, the stages are on so many hosts as far as they know: their sockets are a cluster's
    on loopback addresses. The stages `spared` are spares first, which are told to take a place.
    """

    def __init__(
        self,
        config: WorkerConfig,
        num_stages: int,
        nodes: tuple[int, ...] = (),
        spared: tuple[int, ...] = (),
    ) -> None:
        self._spared = spared
        self._folder = tempfile.TemporaryDirectory(prefix="workers")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self._store = RendezvousStore()
        on_one_host = not nodes
        self._config = with_execution(
            config,
            devices=("cpu",) * num_stages,
            nodes=nodes,
            cluster_keys=None if on_one_host else KEYS,
            worker_endpoint=self._endpoint("engine", on_one_host=on_one_host),
            token_endpoint=self._endpoint("tokens", on_one_host=on_one_host),
        )
        self._admission = None if on_one_host else KEYS.admission(self._context)
        if not on_one_host:
            KEYS.secure_listener(self._router, self.endpoints[0])
        self.processes: list[subprocess.Popen[bytes]] = []
        self.shares: list[Share] = []
        self.reports: list[StageReport] = []

    @property
    def endpoints(self) -> tuple[str, str]:
        """Where the engine core listens, and the first stage."""
        execution = self._config.execution
        return execution.worker_endpoint, execution.token_endpoint

    def _endpoint(self, kind: str, *, on_one_host: bool) -> str:
        if on_one_host:
            return f"ipc://{self._folder.name}/{kind}"
        return f"tcp://127.0.0.2:{free_port()}"

    def __enter__(self) -> "WorkerGroup":
        self._router.bind(self._config.execution.worker_endpoint)
        self.processes = [self._start(stage) for stage in range(self._config.execution.num_stages)]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        if self._admission is not None:
            self._admission.stop()
        self._router.close()
        self._context.term()
        self._folder.cleanup()

    def hand_out_shares(self) -> list[WorkerConnected]:
        """Wait for every stage, and give it its share of the layers as an engine core does; returns
        what each said."""
        connected: list[WorkerConnected] = []
        for _ in self.processes:
            message = self.receive()
            assert isinstance(message, WorkerConnected), message
            connected.append(message)
        self.shares = stage_shares(self._config.execution, connected)
        for stage, share in enumerate(self.shares):
            self.send(stage, share)
        return connected

    def get_ready(self, num_blocks: int) -> list[WorkerLoaded]:
        """Bring every stage to where it takes steps; returns what each said of itself."""
        self.hand_out_shares()
        loaded = [self.receive() for _ in self.processes]
        for stage in range(len(self.processes)):
            self.send(stage, AllocateKV(num_blocks))
        ready = [self.receive() for _ in self.processes]
        assert all(isinstance(message, WorkerReady) for message in ready), ready
        announcements = [message for message in loaded if isinstance(message, WorkerLoaded)]
        return sorted(announcements, key=lambda message: message.stage)

    def send(self, stage: int, message: ToWorker) -> None:
        self._router.send_multipart([b"stage-%d-0" % stage, msgspec.msgpack.encode(message)])

    def submit(self, message: StepInput) -> None:
        for stage in range(len(self.processes)):
            self.send(stage, message)

    def receive(self) -> FromWorker:
        """The next message that is no heartbeat, and no report: `reports` keeps those."""
        while isinstance(message := self._next(), WorkerBeat | StageReport):
            pass
        return message

    def beat(self) -> WorkerBeat:
        while not isinstance(message := self._next(), WorkerBeat):
            pass
        return message

    def _next(self) -> FromWorker:
        name, frame = self._router.recv_multipart()
        message = self._decoder.decode(frame)
        if isinstance(message, StoreCall):
            answer = msgspec.msgpack.encode(self._store.answer(message))
            self._router.send_multipart([name, answer])
            return self._next()
        if isinstance(message, StageReport):
            self.reports.append(message)
        return message

    def output(self) -> StepOutput:
        message = self.receive()
        assert isinstance(message, StepOutput), message
        return message

    def failure(self) -> WorkerFailed:
        message = self.receive()
        assert isinstance(message, WorkerFailed), message
        return message

    def kill(self, stage: int) -> None:
        self.processes[stage].send_signal(signal.SIGKILL)
        self.processes[stage].wait()

    def log(self, stage: int) -> list[str]:
        return self.file(stage, "log").read_text().splitlines()

    def file(self, stage: int, kind: str) -> Path:
        return Path(self._folder.name) / f"stage-{stage}.{kind}"

    def _start(self, stage: int) -> subprocess.Popen[bytes]:
        path = self.file(stage, "json")
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(self._config, stage=stage)))
        # Ours first, and what this process was given: the libraries may be there alone.
        root = str(Path(workers.__file__).parent.parent)
        search_path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | NO_MULTICAST
        environment |= {
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": search_path,
            "TMPDIR": self._folder.name,
        }
        if stage in self._spared:
            self.file(stage, "imports").write_text("triton\nno_such_module")
        with self.file(stage, "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "workers", str(path)]
                + ["spare"] * (stage in self._spared),
                stdin=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        if stage in self._spared:
            assert process.stdin is not None
            process.stdin.write(b"0\n")
            process.stdin.flush()
        return process
