"""The settings of what the daemon admits, and of what one request may ask for."""

from typing import Annotated

from server.settings import defaults
from server.settings.flag_declaration import Flag, FlagGroup
from server.settings.server_config import Limits
from server.settings.setting_types import (
    Bytes,
    Positive,
    PriorityRange,
    Seconds,
    parse_positive,
    parse_priority_range,
    parse_seconds,
    parse_size,
)
from server.settings.storage_settings import StorageSettings


class LimitSettings(StorageSettings, frozen=True, kw_only=True):
    """What one client may ask of the daemon, and all of them together."""

    max_sequences: Annotated[
        Positive,
        Flag(
            FlagGroup.LIMITS,
            "prompts, inputs and documents in flight; more are answered with 429 "
            f"(default: {defaults.MAX_SEQUENCES})",
            parse_positive,
            "N",
        ),
    ] = defaults.MAX_SEQUENCES
    max_queue_seconds: Annotated[
        Seconds,
        Flag(
            FlagGroup.LIMITS,
            "longest expected wait until a request begins, for each model; those that would wait "
            f"longer are answered with 429 (default: {defaults.MAX_QUEUE_SECONDS:g}; 0: no limit)",
            parse_seconds,
            "SECONDS",
        ),
    ] = defaults.MAX_QUEUE_SECONDS
    max_body_size: Annotated[
        Bytes,
        Flag(
            FlagGroup.LIMITS,
            f"largest body of a request (default: {defaults.MAX_BODY_BYTES >> 20}MiB)",
            parse_size,
            "SIZE",
        ),
    ] = defaults.MAX_BODY_BYTES
    max_unread_size: Annotated[
        Bytes,
        Flag(
            FlagGroup.LIMITS,
            "bytes of bodies, waiting conversations, log-probabilities and unread answers, in each "
            "API process; beyond it the largest request gets 429, or the slowest reader is cut off "
            f"(default: {defaults.MAX_UNREAD_BYTES >> 20}MiB)",
            parse_size,
            "SIZE",
        ),
    ] = defaults.MAX_UNREAD_BYTES
    max_unread_seconds: Annotated[
        Seconds,
        Flag(
            FlagGroup.LIMITS,
            "a client that reads nothing of its answer for so long is cut off "
            f"(default: {defaults.MAX_UNREAD_SECONDS:g})",
            parse_seconds,
            "SECONDS",
        ),
    ] = defaults.MAX_UNREAD_SECONDS
    max_inputs: Annotated[
        Positive,
        Flag(
            FlagGroup.LIMITS,
            f"most prompts or inputs of a request (default: {defaults.MAX_INPUTS})",
            parse_positive,
            "N",
        ),
    ] = defaults.MAX_INPUTS
    max_documents: Annotated[
        Positive,
        Flag(
            FlagGroup.LIMITS,
            f"most documents of a rerank request (default: {defaults.MAX_DOCUMENTS})",
            parse_positive,
            "N",
        ),
    ] = defaults.MAX_DOCUMENTS
    max_n: Annotated[
        Positive,
        Flag(
            FlagGroup.LIMITS,
            f"most choices for each prompt (default: {defaults.MAX_N})",
            parse_positive,
            "N",
        ),
    ] = defaults.MAX_N
    priority_range: Annotated[
        PriorityRange | None,
        Flag(
            FlagGroup.LIMITS,
            "lowest and highest priority that a request may name, such as "
            "--priority-range=-1:1; the lowest begin first (default: none but 0)",
            parse_priority_range,
            "LOW:HIGH",
        ),
    ] = None
    max_priority_wait: Annotated[
        Seconds,
        Flag(
            FlagGroup.LIMITS,
            "what has waited so long goes before every priority "
            f"(default: {defaults.MAX_PRIORITY_WAIT:g})",
            parse_seconds,
            "SECONDS",
        ),
    ] = defaults.MAX_PRIORITY_WAIT
    max_request_seconds: Annotated[
        Seconds,
        Flag(
            FlagGroup.LIMITS,
            "longest time that a request may run; texts end there, all else is answered with 504 "
            "(default: 0: no limit)",
            parse_seconds,
            "SECONDS",
        ),
    ] = defaults.MAX_REQUEST_SECONDS

    @property
    def limits(self) -> Limits:
        """What the daemon admits, and what one request may ask for."""
        return Limits(
            max_rows=self.max_sequences,
            max_queue_seconds=self.max_queue_seconds,
            max_body_bytes=self.max_body_size,
            max_unread_bytes=self.max_unread_size,
            max_unread_seconds=self.max_unread_seconds,
            max_inputs=self.max_inputs,
            max_documents=self.max_documents,
            max_n=self.max_n,
            max_file_bytes=self.max_file_size,
            max_file_lines=self.max_file_lines,
            max_stored_bytes=self.max_stored_size,
            priority_range=self.priority_range,
            max_priority_wait=self.max_priority_wait,
            max_request_seconds=self.max_request_seconds,
        )
