"""Answers of `GET /` and `GET /status`."""

from typing import Literal

import msgspec

from workers.contract.config import Task


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go on. All paths but `health` and `metrics` need an API key if `needs_key`."""

    name: str = "penstock"
    """Always `penstock`."""
    needs_key: bool
    """Whether requests need an API key."""
    documentation: str = "/docs"
    models: str = "/v1/models"
    status: str = "/status"
    health: str = "/health"
    metrics: str = "/metrics"
    """The path of this."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram of times in seconds, since the daemon's start."""

    bounds: list[float]
    """Upper bounds in seconds, ascending."""
    counts: list[int]
    """How many times were within each bound and above the one before; the last above all bounds."""


class StageLoss(msgspec.Struct, frozen=True, kw_only=True):
    """The last time that stages of an engine were lost and started again, under the same core."""

    reason: str
    """Which stage was lost, and how."""
    seconds_ago: float
    """When that was."""
    outage_seconds: float | None
    """How long it took until all stages were ready again; null: they are not yet."""


EngineState = Literal["loading", "ready", "restarting", "stopped"]


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An engine of a model as of its last heartbeat."""

    state: EngineState
    """`loading`, also once its core was lost; `ready`; `restarting`: stages were lost, requests
    wait for others; or `stopped`: it has died, and the daemon is about to end."""
    values: dict[str, float]
    """The metrics `penstock_engine_*` by the rest of their names without `_total`, such as
    `running_rows`; only `up` before the first heartbeat."""
    stages: list[dict[str, float]]
    """`busy_seconds`, `waiting_seconds`, `transfer_seconds` and `idle_seconds` of each stage."""
    loss: StageLoss | None
    """The last loss of stages; null: there was none."""


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A served model."""

    name: str
    """The first of the model's names."""
    aliases: list[str]
    """Its other names."""
    task: Task
    """The task of the model."""
    endpoints: list[str]
    """The endpoints that it serves."""
    max_model_len: int
    """Tokens that it takes at most."""
    state: EngineState
    """That of its engine; of several copies `ready` if one is, else the first other one's."""
    prompt_tokens: int
    """Prompt tokens of accepted requests since the daemon's start."""
    generated_tokens: int
    """Tokens that were generated since then."""
    first_token: Times
    """How long requests waited for their first token."""
    inter_token: Times
    """How long streams waited between tokens."""
    engines: list[EngineStatus]
    """Its engine, or each copy."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """The number of an endpoint's answers of one status."""

    endpoint: str
    """The endpoint's path."""
    status: int
    """The HTTP status; 499 where the client left."""
    count: int
    """Answers since the daemon's start."""


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """Admitted work that is not yet answered."""

    requests: int
    """Requests in flight."""
    rows: int
    """Sequences that engines have admitted and not ended."""
    tokens: int
    """Tokens of those."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's state, with all its API processes."""

    version: str
    """The daemon's version."""
    clock_seconds: float
    """A clock that does not jump; only differences mean something."""
    draining: bool
    """Whether running requests are finished and new ones refused."""
    in_flight: InFlight
    """What has been admitted and not yet answered."""
    answers: list[Answers]
    """Counts of answers by endpoint and status."""
    refusals: dict[str, int]
    """Counts of errors by their code, without those that are 0."""
    batches: Literal["running", "waiting"] | None
    """`running`; `waiting` where the batch process cannot run, as the log says; null without
    `--state-dir`."""
    models: list[ModelStatus]
    """The models, in the order of the command line."""
