"""The jobs of a message: those of a group with their whole prompts, and with what they share."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from engine_core.job import PrefixGroup
from engine_core.messages import EncodeJob, GenerateGroup, GenerateJob

_ITEM = 4  # bytes of an int32


def jobs_of(
    message: GenerateJob | EncodeJob | GenerateGroup,
) -> Iterable[tuple[GenerateJob | EncodeJob, PrefixGroup | None]]:
    """Each job, with the group that its rows are in; None for one that came alone."""
    return _members(message) if isinstance(message, GenerateGroup) else ((message, None),)


def _members(message: GenerateGroup) -> Iterator[tuple[GenerateJob, PrefixGroup]]:
    """Each job with the prefix before its own parts, and its group.

    Only jobs of one cache salt share a prefix. A job whose prompt's tokens get log-probabilities
    computes all of them: it shares nothing.
    """
    prefix = message.prefix
    groups: dict[str, PrefixGroup] = defaultdict(lambda: PrefixGroup(len(prefix) // _ITEM))
    for job in message.jobs:
        scored = job.params.prompt_logprobs is not None
        group = PrefixGroup(0) if scored else groups[job.cache_salt]
        whole = msgspec.structs.replace(job, ids=[prefix + own for own in job.ids])
        yield whole, group
