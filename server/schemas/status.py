"""Answers of `GET /` and `GET /status`."""

from typing import Literal

import msgspec

from workers.contract.config import Task


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go from the daemon's address; all but `health` and `metrics` need an API key if
    `needs_key`."""

    name: str = "penstock"
    needs_key: bool
    documentation: str = "/docs"
    models: str = "/v1/models"
    status: str = "/status"
    health: str = "/health"
    metrics: str = "/metrics"


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram of times in seconds, since the daemon's start: `counts[i]` of them are at most
    `bounds[i]` and longer than the bound before; the last count is of those above all bounds."""

    bounds: list[float]
    counts: list[int]


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as of its last heartbeat: the metrics `penstock_engine_*` by the rest of their
    names, counters without `_total`; those of stages by stage."""

    values: dict[str, float]
    stages: list[dict[str, float]]


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A served model. `stopped`: its engine has died, and the daemon is about to end. `engine` is
    null until its first heartbeat; tokens are counted since the daemon's start."""

    name: str
    aliases: list[str]
    task: Task
    endpoints: list[str]
    max_model_len: int
    state: Literal["loading", "ready", "stopped"]
    prompt_tokens: int
    generated_tokens: int
    first_token: Times
    inter_token: Times
    engine: EngineStatus | None


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests of an endpoint had answers of one status; 499: the client left."""

    endpoint: str
    status: int
    count: int


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """What has been admitted and not yet answered."""

    requests: int
    rows: int
    tokens: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's state, with all its API processes. `clock_seconds` is a clock without an origin:
    rates come from the differences between two answers. `batches` is null where there are to be
    none; they wait where the batch process cannot run."""

    version: str
    clock_seconds: float
    draining: bool
    in_flight: InFlight
    answers: list[Answers]
    refusals: dict[str, int]
    batches: Literal["running", "waiting"] | None
    models: list[ModelStatus]
