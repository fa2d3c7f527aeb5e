"""Words of one token each, of which the texts of HTTP cases are made."""

import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from engine_core.tokenization.tokenizer import Tokenizer
from server.bench.measurement import BenchError

_NOT_READ = {"site-packages", "test", "tests"}
_WORD = re.compile(r"\b[a-z]{2,}\b")
_COMMON = 1024
_ID_BYTES = 4


def python_sources() -> Iterator[str]:
    """The text of each file of Python's own library, 13 MB, but for its tests."""
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted(library.rglob("*.py")):
        if not _NOT_READ & set(file.relative_to(library).parts):
            yield file.read_text("utf-8", "replace")


@cache
def common_words() -> tuple[str, ...]:
    """The commonest lower-case words of Python's own library. Most are one token each behind a
    space, by most vocabularies."""
    found = Counter(word for source in python_sources() for word in _WORD.findall(source))
    return tuple(word for word, _ in found.most_common(_COMMON))


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """The common words that are one token each behind a space. Raises BenchError."""
    words = common_words()
    encoded = tokenizer.encode([f" {word}" for word in words], add_special_tokens=False)
    single = [word for word, ids in zip(words, encoded, strict=True) if len(ids) == _ID_BYTES]
    if not single:
        raise BenchError("the tokenizer has no common word that is one token")
    return single
