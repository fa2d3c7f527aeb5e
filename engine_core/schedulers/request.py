"""A row in the decoder's scheduler: one sequence, its known, submitted and confirmed tokens."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from engine_core.loop.jobs import Job, JobKind
from engine_core.messages import SamplingParams
from engine_core.schedulers.kv_cache import BlockHash, HeldBlocks, KVCacheManager
from workers.contract.messages import SlotInit
from workers.contract.token_sampling import BarredTokens, TokenBias

if TYPE_CHECKING:
    from engine_core.structured.matcher import Matcher, TokenLimits
    from engine_core.structured.turn_matcher import TurnMatcher

_SEED_BITS = 63
_NO_BIAS, _NONE_BARRED = TokenBias(), BarredTokens()

UNSHARED = -1  # in place of a block


class Status(Enum):
    """WAITING → RUNNING → WAITING (preempted) …, and ENDED from either, for good."""

    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Request:
    """One row of a job and its state, until it ends.

    tokens         the known ones: prompt, then confirmed output
    max_len        tokens at which it ends, prompt included
    stops          tokens that end it
    matcher        follows its grammar, if it has one, and finds the tokens that it allows
    limits         for `allowed_token_ids` and `bad_words`
    barred         int32, tokens that must not come before `params.min_tokens` others
    read           whether log-probabilities of `params.logprob_token_ids` end it, in place of a
                   sampled token
    shared         tokens that an earlier row of its job begins with, too
    salt           part of its blocks' hashes: only requests with the same one share blocks
    kind           LARGE is beyond the share of its job or key, BATCH of the batch band
    scored_by      the row of its job that scores its prompt, after which it begins
    dropped        prompt tokens that truncation has removed
    submitted      positions whose computation has been sent out
    in_flight      steps that hold it
    unresolved     sampled tokens still on their way: at most two, one and the ahead step's
    rewound        whether it begins again, and steps in flight do not count, as they hold a token
                   that its matcher refused
    resident_from  positions from here on take their token from the slot's buffer, because it was
                   sampled while the request held this slot
    last_step      the newest step that samples for it
    held           while it runs, its blocks in each group of layers
    room           positions for which it holds them
    indexed        its blocks whose tokens others of its scope find
    has_waited     for what another job computes, which it does once
    shared_block   the last block of the prefix that it shares with others that run, or UNSHARED
    announced      whether its client has had an output
    scored         prompt tokens whose log-probability is known, as of the last result
    scores_from    the same, as of the last (re)start
    """

    job: Job
    row: int
    params: SamplingParams
    tokens: array[int]
    max_len: int
    seed: int
    prompt_len: int = field(init=False)
    stops: frozenset[int] = field(init=False)
    matcher: Matcher | TurnMatcher | None = None
    limits: TokenLimits | None = None
    barred: bytes = b""
    read: bool = False
    shared: int = 0
    salt: bytes = field(init=False)
    kind: JobKind = field(init=False)
    scored_by: Request | None = None
    dropped: int = 0
    status: Status = Status.WAITING
    slot: int = -1
    submitted: int = 0
    in_flight: int = 0
    unresolved: int = 0
    rewound: bool = False
    resident_from: int = 0
    last_step: int = -1
    held: list[HeldBlocks] = field(default_factory=list[HeldBlocks])
    room: int = 0
    hashes: list[BlockHash] = field(default_factory=list[BlockHash])
    registered: int = 0
    indexed: int = 0
    has_waited: bool = False
    shared_block: int = UNSHARED
    cached: int = 0
    announced: bool = False
    scored: int = 0
    scores_from: int = 0

    def __post_init__(self) -> None:
        self.prompt_len = len(self.tokens)
        self.salt = self.job.message.cache_salt.encode()
        self.kind = JobKind.BATCH if self.job.is_batch else JobKind.SMALL
        stops = self.params.stop_token_ids
        # A grammar allows end tokens only where its text may end: there they are never ignored.
        ignore_eos = self.params.ignore_eos and self.matcher is None
        self.stops = stops if ignore_eos else stops | self.params.eos_token_ids

    @property
    def blocks(self) -> list[int]:
        """The blocks of the first group, by index, while it runs."""
        return self.held[0].ids

    @property
    def own_tokens(self) -> int:
        """Known tokens that are to be computed for this row: those behind the shared ones."""
        return len(self.tokens) - self.shared

    @property
    def constrained(self) -> bool:
        """True if its steps may need a mask."""
        return self.matcher is not None or self.limits is not None

    @property
    def masked(self) -> bool:
        """True if the next token needs a mask."""
        return self.limits is not None or (self.matcher is not None and self.matcher.masked)

    @property
    def awaits_scores(self) -> bool:
        """True while prompt log-probabilities are to come: the prompt is computed, not cached."""
        return self.params.prompt_logprobs is not None and self.scored < self.prompt_len - 1

    def targets_in(self, start: int, stop: int) -> range:
        """The positions in [start, stop) whose next token must be scored."""
        if self.params.prompt_logprobs is None:
            return range(0)
        return range(max(start, self.scores_from), min(stop, self.prompt_len - 1))

    def begin(self, start: int, shared_blocks: int) -> None:
        """Begin with the first `start` positions, and these whole blocks, in the cache."""
        self.status, self.rewound = Status.RUNNING, False
        self.submitted = start
        self.registered = self.indexed = shared_blocks
        self.resident_from = len(self.tokens)
        self.scores_from = self.scored
        if not self.announced:
            moments = self.job.moments
            moments.found = start if moments.found is None else moments.found
            moments.cached += start - self.cached
            self.cached = start

    def wait_again(self) -> None:
        """Wait after a preemption: all known tokens will be computed again."""
        self.status = Status.WAITING
        self.submitted = self.registered = self.indexed = 0
        self.last_step = -1

    def step_lost(self) -> None:
        """Expect nothing of the steps that hold it."""
        self.in_flight = self.unresolved = 0

    def register_blocks(self, kv: KVCacheManager, stop: int) -> None:
        """Let others share the full blocks before position `stop`, whose hashes are known."""
        for index in range(self.registered, stop // kv.block_size):
            for own in self.held:
                if index >= own.first:
                    kv.register(own.ids[index], self.hashes[index])
            self.registered = index + 1

    def slot_init(self) -> SlotInit:
        """The message to the workers before the first step in this slot."""
        params = self.params
        bias, least = params.logit_bias, params.min_tokens
        return SlotInit(
            slot=self.slot,
            prompt_len=self.prompt_len,
            seed=self.seed,
            sampling=params.sampling,
            logprobs=-1 if params.logprobs is None else params.logprobs,
            prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
            known_tokens=self.tokens.tobytes() if params.sampling.penalised else b"",
            bias=TokenBias(array("i", bias).tobytes(), array("f", bias.values()).tobytes())
            if bias
            else _NO_BIAS,
            barred=BarredTokens(least, self.barred) if least else _NONE_BARRED,
            read=params.logprob_token_ids,
        )


def row_seed(seed: int | None, choice: int) -> int:
    """The seed of choice number `choice` of a prompt: the request's own for 0, else derived."""
    if seed is None:
        return secrets.randbits(_SEED_BITS)
    if choice == 0:
        return seed % (1 << _SEED_BITS)
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
