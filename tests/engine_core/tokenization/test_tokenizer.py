"""Reading tokenizers, and the one that random weights use."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine_core.tokenization.tokenizer import Tokenizer, TokenizerError
from server.demo import EMBEDDER_NAME, demo_models
from tests.engine_core.configs import MODEL


def test_nothing_is_padded_or_truncated_and_special_tokens_can_be_left_out() -> None:
    tokenizer = Tokenizer.load(demo_models()[EMBEDDER_NAME])
    long, short = tokenizer.encode(["word " * 600, "word"])
    assert len(long) // 4 == 602
    assert len(short) // 4 == 3
    (ids,) = tokenizer.encode(["word"], add_special_tokens=False)
    assert tokenizer.decode(np.frombuffer(ids, np.int32).tolist()) == "word"


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model":')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)


def test_made_up_weights_without_a_tokenizer_spell_their_ids(tmp_path: Path) -> None:
    model = msgspec.structs.replace(MODEL, path=str(tmp_path))
    with pytest.raises(TokenizerError):
        Tokenizer.for_model(model, "auto")
    tokenizer = Tokenizer.for_model(model, "dummy")
    (ids,) = tokenizer.encode(["<3> <49> <3>"])
    assert np.frombuffer(ids, np.int32).tolist() == [3, 49, 3]
    assert tokenizer.decode([3, 49, 3]) == "<3> <49> <3>"
