"""A stage that is lost while all connect: the others fail at a link, not by themselves."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.workers.checkpoints import save_llama, worker_config
from workers.contract.config import WorkerConfig
from workers.links.process_groups import all_agree, edge_groups, joined
from workers.links.transport import PipelineError

LOST = "Connection closed by peer [127.0.0.1]:40000"


def join(worker: WorkerConfig) -> None:
    with joined(worker):
        pass


@pytest.mark.parametrize(
    ("call", "connecting"),
    [
        ("init_process_group", join),
        ("new_group", lambda worker: edge_groups(worker.execution.num_stages, "gloo")),
        ("all_reduce", lambda _: all_agree(True)),
    ],
)
def test_a_call_that_needs_a_lost_stage_fails_at_a_link(
    call: str,
    connecting: Callable[[WorkerConfig], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(LOST)

    monkeypatch.setattr(dist, call, fail)
    save_llama(tmp_path)
    with pytest.raises(PipelineError, match="the stages cannot connect: Connection closed by"):
        connecting(worker_config(tmp_path, num_stages=3))
