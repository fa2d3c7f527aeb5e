"""Prefixes that requests find in the KV cache when they begin, and leave there for others.

Whole blocks are shared by all requests of one salt as soon as a step with them is submitted. Parts
of blocks are copied, once their positions are computed: only within one API key; without keys only
within one job or the batch band, or by whoever continues a whole text that was computed before. A
client that guesses another's prompt token by token would else see by `cached_tokens` when it is
right.
"""

from typing import Final, NamedTuple

from engine_core.loop.jobs import Job
from engine_core.schedulers.kv_cache import NO_MATCH, KVCacheManager, Scope
from engine_core.schedulers.request import Request

LEAST_COPIED: Final = 2
"""One token, as the first of all texts, is not worth the copy of a block."""

_LEAST_CONTINUED: Final = 64
"""Nobody guesses a text of more tokens than this."""

_BATCH: Final = "batch band"
_ENDED: Final = "ended texts"


class CachedPrefix(NamedTuple):
    """The longest prefix that a request may share, of `length` tokens.

    They are in whole `blocks` and, if it is not -1, in the first part of the block `source`."""

    blocks: list[int]
    source: int
    length: int


class Claim(NamedTuple):
    """The blocks of all known tokens of a request that begins.

    The first `start` positions are in the cache: `shared` whole blocks of others, and what the step
    copies, (from, to), into the next one before its own work. The block it is copied from is held
    until the step is built.
    """

    blocks: list[int]
    shared: int
    start: int
    copy: tuple[int, int] | tuple[()] = ()


def scope_of(job: Job) -> Scope:
    """Name those who share parts of blocks with a job. A job of one row without a key has None."""
    if number := job.message.key.number:
        return number
    if job.is_batch:
        return _BATCH
    return job.key if job.num_rows > 1 else None


def cached_prefix(kv: KVCacheManager, request: Request) -> CachedPrefix:
    """Look up the known tokens of a request in the cache. The last of them is never in it, because
    the next token is sampled from its logits."""
    request.hashes = kv.hash_blocks(request.tokens, request.hashes, request.salt)
    if request.awaits_scores:
        return CachedPrefix([], -1, 0)
    size, most = kv.block_size, len(request.tokens) - 1
    blocks = kv.match(request.hashes[: most // size])
    whole = len(blocks) * size
    rest = request.tokens[whole : min(whole + size, most)].tobytes()
    source, count = _match_within(kv, request, len(blocks), rest)
    return CachedPrefix(blocks, source, whole + count)


def claim_from_cache(kv: KVCacheManager, request: Request, found: CachedPrefix) -> Claim | None:
    """Take the blocks of all known tokens of a request, sharing those `found`. None if too few are
    free."""
    shared, source, length = found
    needed = kv.blocks_for(len(request.tokens)) - len(shared)
    kv.touch(shared)
    if source >= 0:
        kv.touch([source])
        if (fresh := kv.allocate(needed)) is not None:
            return Claim(shared + fresh, len(shared), length, (source, fresh[0]))
        kv.release([source])
    if (fresh := kv.allocate(needed)) is not None:
        return Claim(shared + fresh, len(shared), len(shared) * kv.block_size)
    kv.release(shared)
    return None


def share_computed(kv: KVCacheManager, request: Request, stop: int) -> None:
    """Let others copy the positions of a request before `stop`, which are computed."""
    scope = scope_of(request.job)
    if scope is not None:
        for index in range(request.indexed, kv.blocks_for(stop)):
            _share_block(kv, request, index, scope, stop)
        request.indexed = stop // kv.block_size


def share_text(kv: KVCacheManager, request: Request) -> None:
    """Let others continue what a request that stops running has computed, while it is cached."""
    stop = len(request.tokens) - 1  # the newest token has no position yet
    if stop < request.resident_from:
        return
    share_computed(kv, request, stop)
    index, rest = divmod(stop, kv.block_size)
    if rest and stop > _LEAST_CONTINUED and not request.job.message.key.number:
        _share_block(kv, request, index, _ENDED, stop)


def _share_block(kv: KVCacheManager, request: Request, index: int, scope: Scope, stop: int) -> None:
    size = kv.block_size
    tokens = request.tokens[index * size : min(stop, (index + 1) * size)].tobytes()
    parent = kv.parent_of(index, request.hashes, request.salt)
    kv.children.add(request.blocks[index], parent, scope, tokens)


def _match_within(kv: KVCacheManager, request: Request, index: int, rest: bytes) -> tuple[int, int]:
    """The block that begins with most of `rest`, and how many tokens these are."""
    parent = kv.parent_of(index, request.hashes, request.salt)
    scope = scope_of(request.job)
    found = NO_MATCH if scope is None else kv.children.longest(parent, scope, rest)
    if not request.job.message.key.number:
        continued = kv.children.longest_whole(parent, _ENDED, rest)
        if continued[1] > found[1] and index * kv.block_size + continued[1] > _LEAST_CONTINUED:
            found = continued
    return found if found[1] >= LEAST_COPIED else NO_MATCH
