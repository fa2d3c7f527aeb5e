"""Which stage is on which device of which host."""

import pytest

from server.models.model_source import SetupError
from server.models.placement import Cluster, Host, place_stages
from workers.contract.curve import ClusterKeys

KEYS = ClusterKeys("", "", "", "")
GIB = 1 << 30


def cluster(*gpus: int) -> Cluster:
    """Hosts with so many GPUs each."""
    hosts = tuple(Host(f"10.0.0.{1 + rank}", 8, (80 * GIB,) * n) for rank, n in enumerate(gpus))
    return Cluster(hosts=hosts, keys=KEYS, worker_endpoint="", token_endpoint="")


@pytest.mark.parametrize(
    ("device", "stages", "gpus", "devices", "nodes"),
    [
        ("auto", 5, (0, 0), "cpu cpu cpu cpu cpu", (0, 0, 0, 1, 1)),
        ("auto", 3, (0, 0, 0), "cpu cpu cpu", (0, 1, 2)),
        ("cpu", 2, (2, 2), "cpu cpu", (0, 1)),
        ("auto", 3, (1, 2), "cuda:0 cuda:0 cuda:1", (0, 1, 1)),
        ("cuda", 2, (1, 1), "cuda:0 cuda:0", (0, 1)),
    ],
)
def test_each_stage_has_a_device(
    device: str, stages: int, gpus: tuple[int, ...], devices: str, nodes: tuple[int, ...]
) -> None:
    placement = place_stages(device, stages, cluster(*gpus))
    assert placement == (tuple(devices.split()), nodes)


EACH = "each CUDA device of the nodes needs one"


@pytest.mark.parametrize(
    ("device", "stages", "gpus", "key", "reason"),
    [
        ("auto", 2, (1, 2), "pipeline_stages", f"2 stages, and {EACH}: 1 on node 0 (10.0.0.1), "),
        ("auto", 4, (1, 2), "pipeline_stages", f"4 stages, and {EACH}: 1 on node 0 (10.0.0.1), "),
        ("auto", 2, (2, 0), "pipeline_stages", f"{EACH}: 2 on node 0 (10.0.0.1), 0 on node 1 ("),
        ("cuda", 2, (0, 0), "pipeline_stages", f"{EACH}: 0 on node 0"),
        ("cpu", 1, (0, 0), "pipeline_stages", "1 stage for 2 nodes: each needs one"),
        ("cuda:1", 2, (1, 1), "device", "cuda:1 is on one host"),
    ],
)
def test_what_does_not_fit(
    device: str, stages: int, gpus: tuple[int, ...], key: str, reason: str
) -> None:
    with pytest.raises(SetupError) as caught:
        place_stages(device, stages, cluster(*gpus))
    assert caught.value.key == key
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("gpus", "described"),
    [
        ((), "8 cores"),
        ((80 * GIB,), "8 cores and 1 CUDA device of 80 GiB"),
        ((80 * GIB, 24 * GIB, 80 * GIB), "8 cores and 3 CUDA devices of 80 GiB, 24 GiB"),
    ],
)
def test_a_host_is_described(gpus: tuple[int, ...], described: str) -> None:
    assert Host("", 8, gpus).described() == described
