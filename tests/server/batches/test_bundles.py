from array import array

from engine_core.messages import SamplingParams, Tokenization
from server.batches.bundles import Bundle, Row, bundles, cut, may_share
from server.generation.plan import GenerationPlan
from server.schemas.completions import CompletionRequest
from server.service.inputs import Items
from workers.contract.token_sampling import GREEDY

PREFIX = list(range(100, 140))


def row(index: int, ids: list[int], salt: str = "", n: int = 1, cut_to: int | None = None) -> Row:
    data = array("i", ids).tobytes()
    plan = GenerationPlan(
        prompts=Items([], [data], len(ids)),
        n=n,
        width=n,
        params=SamplingParams(sampling=GREEDY, max_tokens=4),
        stops=(),
        logprobs=None,
        echo=False,
        cache_salt=salt,
        tokenization=Tokenization(truncate_to=cut_to),
    )
    return Row(index, CompletionRequest(prompt=""), plan, data)


def numbers(bundle: Bundle[Row]) -> list[int]:
    return sorted(row.index for row in bundle.rows)


def test_prompts_that_begin_alike_are_one_bundle() -> None:
    rows = [row(i, [*PREFIX, i] if i % 2 else [i, i]) for i in range(8)]
    shared, alone = bundles(rows)
    assert (shared.prefix_len, numbers(shared)) == (40, [1, 3, 5, 7])
    assert (alone.prefix_len, numbers(alone)) == (0, [0, 2, 4, 6])


def test_salts_and_numbers_of_choices_are_kept_apart() -> None:
    kinds = [("", 1), ("a", 1), ("", 2)] * 2
    found = list(bundles([row(i, [*PREFIX, i], *kind) for i, kind in enumerate(kinds)]))
    assert sorted(map(numbers, found)) == [[0, 3], [1, 4], [2, 5]]
    assert all(bundle.prefix_len == 40 for bundle in found)


def test_prompts_that_share_nothing_come_in_small_bundles() -> None:
    sizes = [len(bundle.rows) for bundle in bundles([row(i, [i, i]) for i in range(150)])]
    assert sizes == [64, 64, 22]


def test_a_cut_bundle_keeps_its_rows_and_its_bounds() -> None:
    whole = Bundle(40, [row(i, [*PREFIX, *[i] * (i + 1)], n=2) for i in range(20)])
    parts = list(cut(whole, 8, 400))
    assert [each for part in parts for each in part.rows] == whole.rows
    assert all(part.prefix_len == 40 for part in parts)
    for part in parts:
        assert sum(each.plan.width for each in part.rows) <= 8
        assert sum(each.tokens for each in part.rows) <= 400 or len(part.rows) == 1


def test_a_prompt_that_is_to_be_truncated_shares_nothing() -> None:
    assert may_share(row(0, PREFIX))
    assert not may_share(row(0, PREFIX, cut_to=8))
