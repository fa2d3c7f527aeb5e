"""Texts for encoders on a GPU: as many tokens as their case says, each a word that is known."""

import pytest

from benchmarks.encoding.gpu_encoding import Model, word_tokenizer


@pytest.mark.parametrize("reranks", [False, True])
@pytest.mark.parametrize("tokens", [512, 32])
def test_texts_have_exactly_their_tokens(*, reranks: bool, tokens: int):
    tokenizer = word_tokenizer()
    query, texts = Model("", reranks=reranks).texts(tokens)
    assert (query is not None) == reranks
    for text in texts[:50]:
        encoded = tokenizer.encode(query, text) if query else tokenizer.encode(text)
        assert len(encoded.ids) == tokens
        assert tokenizer.token_to_id("[UNK]") not in encoded.ids
        assert not any(encoded.type_ids)  # XLM-R has one type
