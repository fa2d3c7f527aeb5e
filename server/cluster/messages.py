"""Messages between a node and the master, over the cluster port."""

import msgspec

from server.models.placement import Host
from workers.contract.config import ExecutionConfig

BEAT_SECONDS = 0.5
"""Seconds between two beats, both ways: a network that stands still for two seconds is no loss."""

SILENT_BEATS = 5
"""Beats in a row that one end hears nothing of the other before that is lost."""

SILENCE = "nothing heard for 3 s"
"""The words for a loss by silence: 2.5 s to 3 s without a beat."""

MOST_BYTES = 4 << 20
"""The largest message that either end reads."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A sign of life, of either end."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A node asks to join. `rank` is the one that it is to have, if a person has chosen one."""

    version: str
    host: Host
    rank: int | None


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The node has the plan's model, and is about to start its workers."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Everything on the node has ended, with a process's exit code, or the signal that killed it
    below 0. `how` goes on after "the node"."""

    how: str
    code: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The master knows the node, which waits for the others."""


class NodeRefused(msgspec.Struct, frozen=True, tag=True):
    """The node may not join."""

    reason: str


class Plan(msgspec.Struct, frozen=True, tag=True):
    """All nodes are there. The node of this `rank` takes its stages of `execution`.

    `source` is the model as the master was given it, `digests` are those of its files. Paths and
    endpoints in `execution` are the master's, and its keys are left out.
    """

    rank: int
    execution: ExecutionConfig
    source: str
    digests: dict[str, str]


class End(msgspec.Struct, frozen=True, tag=True):
    """End everything on the node: it is no longer needed, or the model is lost by `cause`."""

    cause: str = ""


FromNode = Beat | Hello | Prepared | Ended
FromMaster = Beat | Welcome | NodeRefused | Plan | End
