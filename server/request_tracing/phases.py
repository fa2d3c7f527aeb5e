"""What a request's spans say, from its record. Knows nothing of OpenTelemetry's packages."""

from typing import Final, NamedTuple

from server.metrics.families import OTHER
from server.metrics.request_record import RequestRecord

AttributeValue = str | int | float

_MOST_OF_PATH: Final = 1024


class Phase(NamedTuple):
    """A part of a request: seconds from the arrival of its headers to the part's begin and end."""

    name: str
    begin: float
    end: float


def phases(record: RequestRecord) -> list[Phase]:
    """The engine's work for a request that is over: tokenize, queue, prefill, decode, as far as it
    came. None for a request of several jobs: these run side by side, and only their sums are known.

    The engine tells durations. They are laid end to end, up to the moment at which the first token
    was there or the last text was computed, or else the answer.
    """
    if record.jobs != 1:
        return []
    moments = (record.first_token_s, record.encoded_s, record.total_s)
    first = next(moment for moment in moments if moment is not None)
    found: list[Phase] = []
    end = first
    durations = {
        "prefill": record.prefill_s,
        "queue": record.queue_s,
        "tokenize": record.tokenize_s,
    }
    for name, seconds in durations.items():
        begin = max(end - (seconds or 0.0), 0.0)
        found.insert(0, Phase(name, begin, end))
        end = begin
    if record.decode_s is not None:
        found.append(Phase("decode", first, min(first + record.decode_s, record.total_s)))
    return found


def failed(record: RequestRecord) -> bool:
    """Whether its span is an error: by the conventions, what a client did wrong is none."""
    return record.error is not None and not 400 <= record.status < 500


def attributes(record: RequestRecord, method: str, path: str) -> dict[str, AttributeValue]:
    """The attributes of a request's span, by OpenTelemetry's semantic conventions for HTTP and
    generative AI; `gen_ai.request.id` and `gen_ai.latency.*` (seconds) are named as vLLM does."""
    found: dict[str, AttributeValue | None] = {
        "http.request.method": method,
        "http.route": None if record.endpoint == OTHER else record.endpoint,
        "url.path": path[:_MOST_OF_PATH],
        "http.response.status_code": record.status,
        "error.type": record.error,
        "gen_ai.request.id": record.request_id,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens or None,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens or None,
        "gen_ai.usage.output_tokens": record.output_tokens or None,
        "gen_ai.latency.time_in_queue": record.queue_s,
        "gen_ai.latency.time_to_first_token": record.first_token_s,
        "gen_ai.latency.time_in_model_prefill": record.prefill_s,
        "gen_ai.latency.time_in_model_decode": record.decode_s,
        "gen_ai.latency.e2e": record.total_s,
    }
    return {name: value for name, value in found.items() if value is not None}
