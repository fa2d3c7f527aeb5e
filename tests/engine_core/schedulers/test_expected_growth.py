"""Whether a request may begin, by what those that run will need when each of them ends."""

import itertools
from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.loop.jobs import Job
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.schedulers.expected_growth import ExpectedGrowth, OutputLengths
from engine_core.schedulers.kv_cache import KVCacheManager
from engine_core.schedulers.prefixes import cached_prefix, claim_from_cache
from engine_core.schedulers.request import Request
from tests.engine_core.configs import execution_config
from tests.engine_core.driver import Driver, prompt_of

_STOPS = frozenset({7})
_SIZE = 4


def request_of(known: int, left: int, *, stops: bool = False) -> Request:
    params = SamplingParams(eos_token_ids=_STOPS if stops else frozenset())
    job = Job(b"", GenerateJob(0, params=params), 1, 0)
    tokens = array("i", prompt_of(known, seed=known))
    return Request(job, 0, params, tokens, max_len=known + left, seed=0)


def begin(kv: KVCacheManager, growth: ExpectedGrowth, request: Request) -> bool:
    found = cached_prefix(kv, request)
    if not growth.has_room(request, kv.num_held(found.blocks)):
        return False
    prefix = claim_from_cache(kv, request, found)
    assert prefix is not None, "known tokens find blocks"
    request.held = prefix.held
    growth.begun(request, 0)
    return True


def most_held(rows: list[tuple[int, int]]) -> int:
    """The most blocks that rows hold, of so many known tokens and so many to come, which grow
    alike."""
    times = range(max(left for _, left in rows) + 1)
    return max(sum(-(-(known + t) // _SIZE) for known, left in rows if left >= t) for t in times)


@settings(max_examples=200)
@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=2, max_size=12),
    spare=st.integers(-3, 3),
)
def test_a_request_begins_if_all_fit_at_each_end(rows: list[tuple[int, int]], spare: int) -> None:
    blocks = max(most_held(rows[:-1]), most_held(rows) + spare)
    kv = KVCacheManager(blocks, execution_config(block_size=_SIZE).cache_layout)
    growth = ExpectedGrowth(kv)
    requests = [request_of(*row) for row in rows]
    assert all(begin(kv, growth, request) for request in requests[:-1])
    assert begin(kv, growth, requests[-1]) == (most_held(rows) <= blocks)


def test_outputs_are_expected_to_be_like_those_before_that_were_longer() -> None:
    lengths = OutputLengths()
    assert lengths.mean() is None
    for length in (10, 2, 30):
        lengths.add(length)
    assert [lengths.mean(known) for known in (-1, 2, 10, 29)] == [14, 20, 30, 30]
    assert lengths.mean(30) is None
    for length in itertools.repeat(5, 1024):
        lengths.add(length)
    assert (lengths.mean(), lengths.mean(5)) == (5, None)


def test_nothing_gives_way_where_all_outputs_are_known() -> None:
    """Though the prompts alone would fit many times."""
    driver = Driver(num_blocks=24, max_running=16, max_step_tokens=8)
    prompts = driver.add_each((prompt_of(4, seed=job) for job in range(30)), 20)
    driver.drain()
    assert driver.scheduler.usage().preemptions == 0
    assert max(len(batch.requests) for batch in driver.submitted) == 24 // 6
    driver.assert_texts(prompts, 20)


def test_a_request_that_may_end_early_is_expected_to_do_as_others_did() -> None:
    kv = KVCacheManager(40, execution_config(block_size=_SIZE).cache_layout)
    growth = ExpectedGrowth(kv)
    assert begin(kv, growth, request_of(8, 100, stops=True))
    assert not begin(kv, growth, request_of(8, 100, stops=True))  # each may take 27 blocks
    ended = request_of(8, 100, stops=True)
    ended.tokens.extend([1] * 20)
    growth.finished(ended)
    assert begin(kv, growth, request_of(8, 100, stops=True))  # 7
