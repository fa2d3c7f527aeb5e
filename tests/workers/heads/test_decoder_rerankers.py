"""A causal model gives the scores of its model card, whatever is cached, in any steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from engine_core.messages import EncodeJob, Tokenization
from server.api.classify import label_scores
from server.models.model_setup import with_template
from tests.engine_core.fake_transport import Engine
from tests.engine_core.test_core import A
from tests.workers.heads import reranking_gemma
from tests.workers.heads.reranking_qwen3 import (
    DOCUMENTS,
    INSTRUCTION,
    PREFIX,
    QUERY,
    card_scores,
    save_reranking_qwen3,
)
from tests.workers.stage.encoding_engine import answers, cached_tokens, refusal, start_engine
from tests.workers.stages import Stages
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfig
from workers.contract.reranking import RerankTemplate

TOLERANCE = 1e-5
PAIRS = [(QUERY, document) for document in DOCUMENTS]


@dataclass(frozen=True)
class Card:
    """A reranker whose model card computes scores with transformers. `save` writes the model and
    its tokenizer. `uncounted` is the end of the prompt that the card's `max_length` leaves out."""

    save: Callable[[Path], tuple[Any, PreTrainedTokenizerFast]]
    card_scores: Callable[..., np.ndarray]
    uncounted: str = ""


QWEN3 = {
    "Qwen3-Reranker": Card(save_reranking_qwen3, card_scores),
    "Qwen3-Reranker-tied": Card(
        partial(save_reranking_qwen3, tie_word_embeddings=True), card_scores
    ),
}
CARDS = QWEN3 | {
    "bge-reranker-v2-gemma": Card(
        reranking_gemma.save_reranking_gemma, reranking_gemma.card_scores, reranking_gemma.PROMPT
    )
}
only_qwen3 = pytest.mark.parametrize("served", QWEN3, indirect=True, scope="module")


def model_of(folder: Path, given: RerankTemplate | None = None) -> ModelConfig:
    return with_template(read_model_config(folder, "rerank"), (str(folder),), given, "auto")


class Served:
    def __init__(self, folder: Path, card: Card) -> None:
        self.folder, self.card = folder, card
        self.model, self.tokenizer = card.save(folder)
        self.stages = Stages(folder, task="rerank", model=model_of(folder))
        self.expected = self.scores_of(PAIRS)

    def engine(self, **changes: Any) -> Engine:
        return start_engine(self.folder, self.stages, **changes)

    def scores_of(self, pairs: Sequence[tuple[str, str]], **options: Any) -> np.ndarray:
        """The card's scores."""
        return self.card.card_scores(self.model, self.tokenizer, pairs, **options)


@pytest.fixture(scope="module", params=CARDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp(request.param), CARDS[request.param])


def scores(engine: Engine, **job: Any) -> np.ndarray:
    """As the server answers them, float32[N]"""
    (logits,) = answers(
        engine, [EncodeJob(1, **{"texts": DOCUMENTS, "query": QUERY} | job)]
    ).values()
    return label_scores(logits, engine.config.execution.model)[:, 0]


@pytest.mark.parametrize("max_step_tokens", [29, 2048])
def test_scores_are_those_of_the_card(served: Served, max_step_tokens: int) -> None:
    assert served.expected.max() - served.expected.min() > 0.3
    engine = served.engine(max_step_tokens=max_step_tokens)
    assert np.abs(scores(engine) - served.expected).max() < TOLERANCE
    assert engine.core._scheduler.usage().generated_tokens == 0


@only_qwen3
def test_template_and_query_are_computed_once(served: Served) -> None:
    """Even documents of one step share them."""
    shared = f"{PREFIX}<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>:"
    block = served.stages.block_size
    blocks = len(served.tokenizer.encode(shared, add_special_tokens=False)) // block
    engine = served.engine(max_step_tokens=2048)
    found = scores(engine)
    assert cached_tokens(engine) >= (len(DOCUMENTS) - 1) * (blocks - 1) * block > 0
    for each in (found, scores(engine, cache_salt="mine"), scores(engine)):
        assert np.abs(each - served.expected).max() < TOLERANCE


def test_an_instruction_replaces_the_default(served: Served) -> None:
    own = "Find what is heavy. {query} {document}"
    found = scores(served.engine(), instruction=own)
    assert np.abs(found - served.scores_of(PAIRS, instruction=own)).max() < TOLERANCE
    assert np.abs(found - served.expected).max() > 1000 * TOLERANCE


@only_qwen3
def test_a_query_for_each_text(served: Served) -> None:
    queries = ["Who?", "{instruction}", "", "Gravity", "no"]
    expected = served.scores_of(list(zip(queries, DOCUMENTS, strict=True)))
    assert np.abs(scores(served.engine(), query=queries) - expected).max() < TOLERANCE


def test_only_the_document_is_cut(served: Served) -> None:
    uncounted = served.card.uncounted
    limit = 40 if uncounted else 110
    behind = len(served.tokenizer(f"\n{uncounted}", add_special_tokens=False)["input_ids"])
    limit_of_all = limit + behind * bool(uncounted)
    engine = served.engine()
    found = scores(engine, tokenization=Tokenization(truncate_to=limit_of_all))
    assert np.abs(found - served.scores_of(PAIRS, max_length=limit)).max() < TOLERANCE
    parts = [each for outputs in engine.clients.outputs(A) for each in outputs.encoded]
    rows, lens, dropped = (
        np.frombuffer(b"".join(numbers), np.int32).tolist()
        for numbers in zip(*((each.rows, each.lens, each.dropped) for each in parts), strict=True)
    )
    assert lens[rows.index(len(DOCUMENTS) - 1)] == limit_of_all
    assert dropped[rows.index(DOCUMENTS.index(""))] == 0
    assert dropped[rows.index(len(DOCUMENTS) - 1)] > 0


@only_qwen3
def test_a_document_is_cut_on_its_left(served: Served) -> None:
    cut = Tokenization(truncate_to=110, truncation_side="left")
    words = ["Gravity", *["Beijing"] * 40, "is"]
    found = scores(served.engine(), texts=[" ".join(words)], tokenization=cut)
    pairs = [(QUERY, " ".join(words[-count:])) for count in range(1, len(words))]
    expected = served.scores_of(pairs)
    assert np.abs(found - expected).min() < TOLERANCE
    assert found != pytest.approx(expected[-1], abs=TOLERANCE)


@only_qwen3
def test_the_logit_of_one_token(served: Served) -> None:
    model, tokenizer = served.model, served.tokenizer
    template = RerankTemplate(
        pieces=("A: {query}", "\n", "B: {document}", "\nyes?"), positive="yes"
    )
    stages = Stages(served.folder, task="rerank", model=model_of(served.folder, template))
    engine = start_engine(served.folder, stages)
    (found,) = answers(engine, [EncodeJob(1, texts=DOCUMENTS[:1], query=QUERY)]).values()
    pieces = (f"A: {QUERY}", "\n", f"B: {DOCUMENTS[0]}", "\nyes?")
    ids = [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]
    logits = model(model.dummy_inputs["input_ids"].new_tensor([ids])).logits[0, -1]
    assert found[0, 0] == pytest.approx(logits[tokenizer.convert_tokens_to_ids("yes")].item(), 1e-4)


@only_qwen3
@pytest.mark.parametrize(
    ("job", "message"),
    [
        (EncodeJob(1, texts=["a"]), "this model scores pairs of a query and a text"),
        (EncodeJob(1, texts=["a"], query=["b", "c"]), "2 queries, 1 texts"),
        (
            EncodeJob(1, texts=["Beijing " * 600], query=QUERY),
            "documents has 685 tokens; this model's KV cache holds 384",
        ),
        (
            EncodeJob(1, texts=["a"], query=QUERY, tokenization=Tokenization(truncate_to=20)),
            "query and template have 84 tokens; the limit for them and a text is 20",
        ),
    ],
)
def test_jobs_that_are_refused(served: Served, job: EncodeJob, message: str) -> None:
    assert message in refusal(served.engine(), job)
