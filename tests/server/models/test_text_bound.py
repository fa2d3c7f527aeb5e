"""Texts that are far too long are refused by name, and nothing else is."""

import pytest

from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server.demo import demo_models
from server.models.text_bound import TextBound


@pytest.mark.parametrize("name", list(demo_models()))
def test_what_is_refused_could_fit_no_model_of_that_length(name: str) -> None:
    tokenizer = Tokenizer.load(demo_models()[name])
    bound = TextBound(tokenizer, 8)
    longest = max(tokenizer.raw.get_vocab(), key=len)
    text = (longest + " ") * (bound.most_characters // (len(longest) + 1))
    bound.check_length(len(text), "input")
    (ids,) = tokenizer.encode([text])
    assert len(ids) // 4 > 8 * 32, "what is just below the bound is many times too long"
    with pytest.raises(RefusalError) as refused:
        bound.check_all(["short", text + "x" * (len(longest) + 2)], "input[{}]".format)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input[1]")
