"""The hosts of a model's stages, and which stage is on which device of which host."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import NamedTuple

import msgspec

from server.models.devices import available_cores, cuda_memory, resolve_devices
from server.models.model_source import SetupError
from workers.contract.curve import ClusterKeys


class Host(msgspec.Struct, frozen=True):
    """One host, and its resources for workers. `gpu_memory` is the bytes of each of its CUDA
    devices, if torch can use them."""

    address: str
    cores: int
    gpu_memory: tuple[int, ...]

    @classmethod
    def this_one(cls, address: str = "") -> "Host":
        usable = not version("torch").endswith("+cpu")
        return cls(address, available_cores(), cuda_memory() if usable else ())

    def described(self) -> str:
        """Such as "16 cores and 2 CUDA devices of 80 GiB"."""
        sizes = ", ".join(f"{size >> 30} GiB" for size in dict.fromkeys(self.gpu_memory))
        gpus = f" and {_amount(len(self.gpu_memory), 'CUDA device')} of {sizes}" if sizes else ""
        return _amount(self.cores, "core") + gpus


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of one model by rank, from the master's, and how their processes reach it."""

    hosts: tuple[Host, ...]
    keys: ClusterKeys
    worker_endpoint: str
    token_endpoint: str


class Placement(NamedTuple):
    """The device of each stage and, with several hosts, the rank of its host. Stages of copies are
    behind those of the copy before."""

    devices: tuple[str, ...]
    nodes: tuple[int, ...] = ()


def place_stages(device: str, stages: int, cluster: Cluster | None, copies: int = 1) -> Placement:
    """Give each stage its device. On several hosts each CUDA device has one stage, and CPUs have as
    many as each other, the first hosts one more. Raises SetupError."""
    if cluster is None:
        return Placement(resolve_devices(device, stages, copies))
    if copies > 1:
        reason = f"{copies} copies are on one host; --nodes divide a single engine"
        raise SetupError("data_parallel_size", reason)
    evenly = stages_by_node(device, stages, len(cluster.hosts))
    gpus = [len(host.gpu_memory) for host in cluster.hosts]
    if device == "cpu" or (device == "auto" and not any(gpus)):
        return Placement(("cpu",) * stages, _ranks(evenly))
    if stages != sum(gpus) or 0 in gpus:
        each = ", ".join(
            f"{count} on node {rank} ({host.address})"
            for rank, (count, host) in enumerate(zip(gpus, cluster.hosts, strict=True))
        )
        reason = f"{_amount(stages, 'stage')}, and each CUDA device of the nodes needs one: {each}"
        raise SetupError("pipeline_stages", reason)
    return Placement(tuple(f"cuda:{own}" for count in gpus for own in range(count)), _ranks(gpus))


def stages_by_node(device: str, stages: int, nodes: int) -> list[int]:
    """The number of stages of each node where all have as many as each other, the first ones one
    more. Raises SetupError for fewer stages than nodes, and for a device that is on one host."""
    if device not in ("auto", "cpu", "cuda"):
        reason = f"{device} is on one host; with --nodes all CUDA devices of each are used"
        raise SetupError("device", reason)
    if stages < nodes:
        reason = f"{_amount(stages, 'stage')} for {nodes} nodes: each needs one"
        raise SetupError("pipeline_stages", reason)
    each, left_over = divmod(stages, nodes)
    return [each + (rank < left_over) for rank in range(nodes)]


def _ranks(counts: Sequence[int]) -> tuple[int, ...]:
    """The rank of each stage's host, of which each has so many."""
    return tuple(rank for rank, count in enumerate(counts) for _ in range(count))


def _amount(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
