"""A client's job inside the core, and the error that refuses or fails one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine_core.messages import EncodeJob, FailureCode, GenerateJob

if TYPE_CHECKING:
    from engine_core.structured.grammar import CompiledGrammar

JobKey = tuple[bytes, int]


class RefusalError(Exception):
    """Why a job is not taken: becomes its `Failed` message."""

    def __init__(
        self,
        code: FailureCode,
        message: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code: FailureCode = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


@dataclass(slots=True, eq=False)
class Job:
    """One admitted job of one client. `cost` is what it holds of the token budget; `grammar` what
    its rows must match, once that is compiled."""

    client: bytes
    message: GenerateJob | EncodeJob
    num_rows: int
    cost: int
    open_rows: int = field(init=False)
    ended: bool = False
    grammar: CompiledGrammar | None = None

    def __post_init__(self) -> None:
        self.open_rows = self.num_rows

    @property
    def key(self) -> JobKey:
        """Unique in the core: client ids are unique only within a client."""
        return (self.client, self.message.id)
