"""The settings of what the daemon admits, of what one request may ask for and a client store."""

from typing import Annotated

import msgspec

from server.settings.flag_declaration import Flag, FlagGroup
from server.settings.setting_types import (
    Bytes,
    Positive,
    PriorityRange,
    Seconds,
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the daemon, of one request, and of what a client stores. Sizes are in bytes.

    `max_sequences` bounds what is in flight of each model, `max_queue_seconds` (0: nothing) its
    expected wait; `max_unread_size` bounds what an API process holds. `priority_range` is what
    requests may name, from and to; None: 0 alone. What has waited `max_priority_wait` seconds goes
    before every priority. A request runs for `max_request_seconds` at most (0: for any time).
    """

    max_sequences: Annotated[
        Positive,
        Flag(
            FlagGroup.LIMITS, "prompts, inputs and documents in flight; more are answered with 429"
        ),
    ] = 16_384
    max_queue_seconds: Annotated[
        Seconds,
        Flag(
            FlagGroup.LIMITS,
            "longest expected wait until a request begins, for each model; those that would wait "
            "longer are answered with 429 (default: 30; 0: no limit)",
        ),
    ] = 30.0
    max_body_size: Annotated[Bytes, Flag(FlagGroup.LIMITS, "largest body of a request")] = 8 << 20
    max_unread_size: Annotated[
        Bytes,
        Flag(
            FlagGroup.LIMITS,
            "bytes of bodies, waiting conversations, log-probabilities and unread answers, in each "
            "API process; beyond it the largest request gets 429, or the slowest reader is cut off",
        ),
    ] = 256 << 20
    max_unread_seconds: Annotated[
        Seconds,
        Flag(FlagGroup.LIMITS, "a client that reads nothing of its answer for so long is cut off"),
    ] = 120.0
    max_inputs: Annotated[
        Positive, Flag(FlagGroup.LIMITS, "most prompts or inputs of a request")
    ] = 2048
    max_documents: Annotated[
        Positive, Flag(FlagGroup.LIMITS, "most documents of a rerank request")
    ] = 1000
    max_n: Annotated[Positive, Flag(FlagGroup.LIMITS, "most choices for each prompt")] = 128
    priority_range: Annotated[
        PriorityRange | None,
        Flag(
            FlagGroup.LIMITS,
            "lowest and highest priority that a request may name, such as "
            "--priority-range=-1:1; the lowest begin first (default: none but 0)",
        ),
    ] = None
    max_priority_wait: Annotated[
        Seconds, Flag(FlagGroup.LIMITS, "what has waited so long goes before every priority")
    ] = 10.0
    max_request_seconds: Annotated[
        Seconds,
        Flag(
            FlagGroup.LIMITS,
            "longest time that a request may run; texts end there, all else is answered with 504 "
            "(default: 0: no limit)",
        ),
    ] = 0.0
    max_file_size: Annotated[
        Bytes,
        Flag(FlagGroup.STORAGE, "largest file"),
    ] = 512 << 20
    max_file_lines: Annotated[Positive, Flag(FlagGroup.STORAGE, "most lines of a file")] = 50_000
    max_stored_size: Annotated[
        Bytes,
        Flag(
            FlagGroup.STORAGE,
            "most bytes of files of one API key, or of all clients if there are no keys",
        ),
    ] = 16 << 30
