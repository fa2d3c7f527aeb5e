import io
import json
import random
from codecs import BOM_UTF8
from itertools import pairwise

import numpy as np
import pytest

from server.batches.file_job import LineIndex, LineRules
from tests.server.batches.requests_file import line

MOST = 1 << 16


def index_of(*lines: bytes, most: int = MOST) -> LineIndex:
    return LineIndex(io.BytesIO(b"".join(lines)), LineRules(max_line_bytes=most))


def test_lines_are_found_where_they_are() -> None:
    lines = [line("a"), b"\n", b"  \r\n", line("b"), b"nonsense\n", line("c").rstrip()]
    index = index_of(*lines)
    assert index.numbers.tolist() == [1, 4, 5, 6]
    whole = b"".join(lines)
    found = [whole[o : o + s] for o, s in zip(index.offsets, index.sizes, strict=True)]
    assert found == [lines[0], lines[3], lines[4], lines[5]]
    assert index.num_bytes == len(whole)


def test_what_cannot_be_read_is_a_line_all_the_same() -> None:
    odd = [b'{"custom_id": "\xff"}\n', rb'{"custom_id": "\ud800"}' + b"\n", b"[" * 9999 + b"\n"]
    index = index_of(*odd, b'{"custom_id": "a", "body": 5}\n')
    assert len(index.order()) == len(index) == 4
    assert not index.repeated.any()


def test_a_long_line_is_passed_over() -> None:
    index = index_of(line("a"), b"x" * (3 << 20) + b"\n", line("b"), most=100)
    assert index.numbers.tolist() == [1, 2, 3]
    assert index.sizes[1] == (3 << 20) + 1
    assert index.offsets[2] == index.offsets[1] + index.sizes[1]


def test_the_second_of_two_ids_is_a_repetition_and_what_is_no_request_takes_none() -> None:
    get = line("a").replace(b"POST", b"GET")
    index = index_of(get, line("a"), line("b"), get, line("a"), b"nonsense\n", b"nonsense\n")
    assert index.repeated.tolist() == [False, False, False, False, True, False, False]


@pytest.mark.parametrize("blank", [b"", b"\n", b" \r\n"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(blank: bytes) -> None:
    index = index_of(BOM_UTF8 + blank, line("a"), line("b"))
    assert index.numbers.tolist() == ([2, 3] if blank else [1, 2])
    assert index.offsets.tolist() == [3 + len(blank), 3 + len(blank) + len(line("a"))]
    assert index.sizes.tolist() == [len(line("a"))] * 2
    assert len(index_of(BOM_UTF8)) == len(index_of(BOM_UTF8 + blank)) == 0


def test_every_byte_counts_in_the_digest() -> None:
    lines = [line("a"), b"x" * 5000 + b"\n", line("b")]
    digests = {index_of(*lines, most=100).digest}
    for position in (0, 5000, sum(map(len, lines)) - 2):
        changed = bytearray(b"".join(lines))
        changed[position] ^= 1
        digests.add(index_of(bytes(changed), most=100).digest)
    assert len(digests) == 4


def decision(custom_id: str, about: str) -> bytes:
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/decisions"}
    return json.dumps({**request, "body": {"questions": [], "input": about}}).encode() + b"\n"


@pytest.mark.parametrize("make", [line, decision])
@pytest.mark.parametrize(("common", "shared"), [(0, 200), (0, 3_000), (0, 40_000), (4_000, 1_000)])
def test_prompts_that_begin_alike_follow_each_other(make, common: int, shared: int) -> None:
    """Documents with questions, perhaps behind instructions that are common to all."""
    lines = [
        make(f"{group} {member}", "i" * common + chr(97 + group) * shared + str(member))
        for group in range(20)
        for member in range(15)
    ]
    random.Random(1).shuffle(lines)
    order = index_of(*lines).order()
    assert sorted(order) == list(range(300))
    groups = [lines[at].split()[1] for at in order]
    assert np.count_nonzero([one != other for one, other in pairwise(groups)]) == 19


def test_lines_without_a_prompt_keep_their_order() -> None:
    lines = [line(str(n)).replace(b'"prompt": "a"', b'"input": "a"') for n in range(9)]
    assert index_of(*lines).order().tolist() == list(range(9))
