"""The prompts of a workload: token ids, or texts of a number of tokens.

Both are drawn from `random.Random(SEED)`: the same on every machine and with every server.
"""

import math
import random
import re
from array import array
from collections.abc import Iterator, Sequence

from engine_core.tokenization.tokenizer import Tokenizer
from server.bench.measurement import BenchError
from server.bench.workloads import GenerationCase, OfflineCase

SEED = 123
_SHUFFLE_SEED = 7
_LARGEST_ID = 20_000
_WORD = re.compile(r"[a-z]{2,}")
_ID_BYTES = 4
_CHECKED_AT_ONCE = 1024
"""Texts: a tokenizer's results take some 100 bytes a token."""
_SPACE_MARKS = "Ġ▁"
"""How vocabularies write the space before a word."""


def offline_prompts(case: OfflineCase, seed: int = SEED) -> list[bytes]:
    """Token ids (int32 bytes) of each prompt, uniform from 1 to 20000, in order of submission."""
    drawn = random.Random(seed)  # noqa: S311 (a workload, not a secret)
    prompts = list(_grouped(case, drawn))
    if case.shuffled:
        random.Random(_SHUFFLE_SEED).shuffle(prompts)  # noqa: S311
    return prompts


def output_lengths(case: GenerationCase, count: int) -> list[int]:
    """How many tokens each of `count` prompts is continued by. Where these differ, they are
    exponential, rounded up and cut to `most_outputs`."""
    if not case.most_outputs:
        return [case.outputs] * count
    drawn = random.Random(SEED)  # noqa: S311
    lengths = [math.ceil(drawn.expovariate(1 / case.outputs)) for _ in range(count)]
    return [min(max(1, length), case.most_outputs) for length in lengths]


def _grouped(case: OfflineCase, drawn: random.Random) -> Iterator[bytes]:
    for group in range(case.count):
        prefix = _ids(drawn, case.prefix)
        for _ in range(case.documents):
            document = prefix + _ids(drawn, case.document)
            for _ in range(case.members):
                varied = drawn.randint(case.own, case.most_own) if case.most_own else 0
                yield document + _ids(drawn, varied or case.own_of(group))


def _ids(drawn: random.Random, count: int) -> bytes:
    """What `drawn.randint(1, _LARGEST_ID)` would give, in a fifth of the time."""
    ids = array("i")
    bits = _LARGEST_ID.bit_length()
    while left := count - len(ids):
        some = [drawn.getrandbits(bits) for _ in range(left)]
        ids.extend([number + 1 for number in some if number < _LARGEST_ID])
    return ids.tobytes()


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """The lower-case words that are one token each behind a space, sorted.

    Raises BenchError if the vocabulary has none.
    """
    vocabulary = tokenizer.raw.get_vocab(with_added_tokens=False)
    pieces = {token.lstrip(_SPACE_MARKS) for token in vocabulary}
    words = sorted(word for word in pieces if _WORD.fullmatch(word))
    texts = [f" {word}" for word in words]
    encoded = tokenizer.encode(texts, add_special_tokens=False)
    single = [word for word, ids in zip(words, encoded, strict=True) if len(ids) == _ID_BYTES]
    if not single:
        raise BenchError("the tokenizer has no lower-case words that are one token each")
    return single


def texts_of(
    tokenizer: Tokenizer, words: Sequence[str], count: int, tokens: int, seed: int | str = SEED
) -> list[str]:
    """`count` texts of random `words`, each exactly `tokens` tokens long (special ones on top).

    Raises BenchError where words that follow each other do not stay one token each.
    """
    drawn = random.Random(seed)  # noqa: S311
    texts = ["".join(f" {word}" for word in drawn.choices(words, k=tokens)) for _ in range(count)]
    for start in range(0, count, _CHECKED_AT_ONCE):
        some = texts[start : start + _CHECKED_AT_ONCE]
        for text, ids in zip(some, tokenizer.encode(some, add_special_tokens=False), strict=True):
            if len(ids) != tokens * _ID_BYTES:
                found = len(ids) // _ID_BYTES
                raise BenchError(f"a text of {tokens} words has {found} tokens: {text[:60]}...")
    return texts
