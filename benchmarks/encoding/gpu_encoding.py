"""Encoders on CUDA, given texts, beside sentence-transformers on the same GPU, both in bfloat16.

Models have published shapes and random weights, which both programs read from the same files, and
each word is one token. The programs compute the same texts in turn, sentence-transformers in
batches of 32, which are its default, and of 256.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from benchmarks.encoding.cpu_embedding import Embedded, embed_elsewhere, running_peer
from benchmarks.report import Budget, Figure, NotMeasuredError
from server.bench.dummy_models import parse_shape
from server.bench.words import common_words
from server.daemon.run import RunningEngine, running_engine
from server.models.model_setup import EngineOptions

_LENGTHS, _TOKENS = (512, 128, 32), 1 << 20
_ROUNDS, _WARM_UP = 2, 16
_BATCHES = (32, 256)
_QUERY_WORDS = 8
_SPECIAL = {"cls_token": "[CLS]", "pad_token": "[PAD]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
_SINGLE, _PAIR = "[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B:0 [SEP]:0"


@dataclass(frozen=True)
class Model:
    """A published shape; a reranker's texts are pairs, and it has a score for each."""

    shape: str
    reranks: bool = False

    @property
    def peer(self) -> str:
        """sentence-transformers' kind of model (`embedding_peer.py`)."""
        kind = "cross_encoder" if self.reranks else "sentence_transformers"
        return f"{kind}_on_cuda"

    def texts(self, tokens: int) -> tuple[str | None, list[str]]:
        """A reranker's query, and texts that have so many tokens with it and special ones."""
        random, words, count = Random(1), common_words(), tokens - 2
        query = None
        if self.reranks:
            query = " ".join(random.choices(words, k=_QUERY_WORDS))
            count -= 2 + _QUERY_WORDS
        texts = [" ".join(random.choices(words, k=count)) for _ in range(_TOKENS // tokens)]
        return query, texts


_MODELS = (Model("bge-base"), Model("modernbert-base"), Model("xlmr-large", reranks=True))


def measure() -> list[Figure]:
    """Texts a second of both programs, by model and length. Raises NotMeasuredError."""
    if not torch.cuda.is_available():
        raise NotMeasuredError("needs a CUDA device")
    return [figure for model in _MODELS for figure in _of_model(model)]


def _of_model(model: Model) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        folder = Path(directory)
        _write(model, folder)
        peers = {
            f"sentence-transformers, batches of {size}": stack.enter_context(
                running_peer(sys.executable, model.peer, folder, size, os.environ)
            )
            for size in _BATCHES
        }
        return asyncio.run(_beside(model, folder, peers))


def _write(model: Model, folder: Path) -> None:
    tokenizer = word_tokenizer()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **_SPECIAL
    ).save_pretrained(folder)
    config = AutoConfig.from_pretrained(
        parse_shape(model.shape), pad_token_id=tokenizer.token_to_id("[PAD]")
    )
    kind = AutoModelForSequenceClassification if model.reranks else AutoModel
    with torch.device("cuda"):
        made = kind.from_config(config, dtype=torch.bfloat16)
    made.save_pretrained(folder)


def word_tokenizer() -> Tokenizer:
    """WordPiece of common words, as BERT's, with the ids of special tokens that XLM-R has."""
    words = [*_SPECIAL.values(), *common_words()]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=_SINGLE,
        pair=_PAIR,
        special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")],
    )
    return tokenizer


async def _beside(model: Model, folder: Path, peers) -> list[Figure]:
    options = EngineOptions(log_level="warning", device="cuda", dtype="bfloat16")
    figures: list[Figure] = []
    async with running_engine(folder, options) as engine:
        for tokens in _LENGTHS:
            query, texts = model.texts(tokens)
            runs: dict[str, list[Embedded]] = {name: [] for name in ("penstock", *peers)}
            for part in (len(texts) // _WARM_UP, *[len(texts)] * _ROUNDS):
                own = await _encode(engine, query, texts[:part])
                runs["penstock"].append(own)
                sent = [[query, text] for text in texts] if query else texts
                for name, peer in peers.items():
                    runs[name].append(embed_elsewhere(peer, sent[:part]))
                    _check(own, runs[name][-1])
            figures += _figures(f"{model.shape}, {tokens} tokens", len(texts), runs)
    return figures


async def _encode(engine: RunningEngine, query: str | None, texts: list[str]) -> Embedded:
    started, cpu = time.perf_counter(), time.process_time()
    found = await engine.client.encode(texts=texts, query=query)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Embedded(seconds, cpu, found.values[0].tolist())


def _check(own: Embedded, other: Embedded) -> None:
    """Raise AssertionError if vectors or scores differ by more than rounding to 16 bits."""
    ours, theirs = np.array(own.first), np.array(other.first)
    if len(ours) == 1:
        np.testing.assert_allclose(ours, theirs, atol=0.02)
    else:
        assert ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs) > 0.999


def _figures(name: str, texts: int, runs: dict[str, list[Embedded]]) -> Iterator[Figure]:
    rates = {
        program: texts / median(run.seconds for run in own[1:]) for program, own in runs.items()
    }
    for program, rate in rates.items():
        yield Figure(f"{name}: {program}", rate, "texts/s")
    own = rates.pop("penstock")
    yield Figure(f"{name}: ours to the best", own / max(rates.values()), "x", Budget(1.0, True))
