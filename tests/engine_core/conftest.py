"""A tokenizer of whole words, `w0` … `w49`, with the ids 0 … 49."""

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from engine_core.tokenization.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def word_tokenizer() -> Tokenizer:
    raw = RawTokenizer(WordLevel({f"w{i}": i for i in range(50)}, unk_token="w0"))
    raw.pre_tokenizer = Whitespace()
    return Tokenizer(raw)
