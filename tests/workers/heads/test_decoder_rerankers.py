"""A causal model that reranks gives the scores of Qwen3-Reranker's model card, whatever is cached
and however prompts are cut into steps."""

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from engine_core.messages import EncodeJob, Tokenization
from server.api.classify import label_scores
from server.models.model_setup import with_template
from tests.engine_core.fake_transport import Engine
from tests.engine_core.test_core import A
from tests.workers.heads.reranking_qwen3 import (
    DOCUMENTS,
    INSTRUCTION,
    PREFIX,
    QUERY,
    card_scores,
    save_reranking_qwen3,
)
from tests.workers.inline_engine import shifted_position
from tests.workers.stage.encoding_engine import answers, cached_tokens, refusal, start_engine
from tests.workers.stages import Stages
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfig
from workers.contract.reranking import RerankTemplate

TOLERANCE = 1e-5
PAIRS = [(QUERY, document) for document in DOCUMENTS]
Reference = tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def tied(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tied: bool) -> Path:
    return tmp_path_factory.mktemp(f"Qwen3-Reranker-{tied}")


@pytest.fixture(scope="module")
def reference(folder: Path, tied: bool) -> Reference:
    return save_reranking_qwen3(folder, tie_word_embeddings=tied)


def model_of(folder: Path, given: RerankTemplate | None = None) -> ModelConfig:
    return with_template(read_model_config(folder, "rerank"), (str(folder),), given, "auto")


@pytest.fixture(scope="module")
def stages(folder: Path, reference: Reference) -> Stages:
    return Stages(folder, task="rerank", model=model_of(folder))


@pytest.fixture(scope="module")
def expected(reference: Reference) -> np.ndarray:
    return card_scores(*reference, PAIRS)


def scores(engine: Engine, job: EncodeJob) -> np.ndarray:
    """As the server answers them, float32[N]"""
    (logits,) = answers(engine, [job]).values()
    return label_scores(logits, engine.config.execution.model)[:, 0]


@pytest.mark.parametrize("max_step_tokens", [29, 2048])
def test_scores_are_those_of_the_card(
    folder: Path, stages: Stages, expected: np.ndarray, max_step_tokens: int
) -> None:
    assert expected.max() - expected.min() > 0.3
    engine = start_engine(folder, stages, max_step_tokens=max_step_tokens)
    found = scores(engine, EncodeJob(1, texts=DOCUMENTS, query=QUERY))
    assert np.abs(found - expected).max() < TOLERANCE
    assert engine.core._scheduler.usage().generated_tokens == 0


def test_two_stages(folder: Path, reference: Reference, expected: np.ndarray) -> None:
    stages = Stages(folder, task="rerank", num_stages=2, model=model_of(folder))
    engine = start_engine(folder, stages, max_step_tokens=40)
    found = scores(engine, EncodeJob(1, texts=DOCUMENTS, query=QUERY))
    assert np.abs(found - expected).max() < TOLERANCE


def test_template_and_query_are_computed_once(
    folder: Path, stages: Stages, reference: Reference, expected: np.ndarray
) -> None:
    """Even documents of one step share them."""
    _, tokenizer = reference
    shared = f"{PREFIX}<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>:"
    blocks = len(tokenizer.encode(shared, add_special_tokens=False)) // stages.block_size
    engine = start_engine(folder, stages, max_step_tokens=2048)
    found = scores(engine, EncodeJob(1, texts=DOCUMENTS, query=QUERY))
    assert cached_tokens(engine) >= (len(DOCUMENTS) - 1) * (blocks - 1) * stages.block_size > 0
    salted = scores(engine, EncodeJob(2, texts=DOCUMENTS, query=QUERY, cache_salt="mine"))
    again = scores(engine, EncodeJob(3, texts=DOCUMENTS, query=QUERY))
    for each in (found, salted, again):
        assert np.abs(each - expected).max() < TOLERANCE


def test_an_instruction_replaces_the_default(
    folder: Path, stages: Stages, reference: Reference, expected: np.ndarray
) -> None:
    own = "Find what is heavy. {query} {document}"
    engine = start_engine(folder, stages)
    found = scores(engine, EncodeJob(1, texts=DOCUMENTS, query=QUERY, instruction=own))
    assert np.abs(found - card_scores(*reference, PAIRS, instruction=own)).max() < TOLERANCE
    assert np.abs(found - expected).max() > 1000 * TOLERANCE


def test_a_query_for_each_text(folder: Path, stages: Stages, reference: Reference) -> None:
    queries = ["Who?", "{instruction}", "", "Gravity", "no"]
    engine = start_engine(folder, stages)
    found = scores(engine, EncodeJob(1, texts=DOCUMENTS, query=queries))
    pairs = list(zip(queries, DOCUMENTS, strict=True))
    assert np.abs(found - card_scores(*reference, pairs)).max() < TOLERANCE


def test_only_the_document_is_cut(folder: Path, stages: Stages, reference: Reference) -> None:
    limit = 110
    expected = card_scores(*reference, PAIRS, max_length=limit)
    engine = start_engine(folder, stages)
    cut = Tokenization(truncate_to=limit)
    found = scores(engine, EncodeJob(1, texts=DOCUMENTS, query=QUERY, tokenization=cut))
    assert np.abs(found - expected).max() < TOLERANCE
    (accepted,) = [each for outputs in engine.clients.outputs(A) for each in outputs.accepted]
    assert accepted.prompt_tokens[-1] == limit
    assert [tokens > 0 for tokens in accepted.dropped] == [False] * 4 + [True]


def test_a_document_is_cut_on_its_left(folder: Path, stages: Stages, reference: Reference) -> None:
    engine = start_engine(folder, stages)
    cut = Tokenization(truncate_to=110, truncation_side="left")
    words = ["Gravity", *["Beijing"] * 40, "is"]
    found = scores(engine, EncodeJob(1, texts=[" ".join(words)], query=QUERY, tokenization=cut))
    pairs = [(QUERY, " ".join(words[-count:])) for count in range(1, len(words))]
    expected = card_scores(*reference, pairs)
    assert np.abs(found - expected).min() < TOLERANCE
    assert found != pytest.approx(expected[-1], abs=TOLERANCE)


def test_a_wrong_position_would_be_seen(folder: Path, stages: Stages, expected: np.ndarray) -> None:
    engine = start_engine(folder, stages, shifted_position(at=2), max_step_tokens=29)
    found = scores(engine, EncodeJob(1, texts=DOCUMENTS, query=QUERY))
    assert np.abs(found - expected).max() > 100 * TOLERANCE


def test_the_logit_of_one_token(folder: Path, reference: Reference) -> None:
    """Of a template that the configuration gives."""
    model, tokenizer = reference
    template = RerankTemplate(
        pieces=("A: {query}", "\n", "B: {document}", "\nyes?"), positive="yes"
    )
    stages = Stages(folder, task="rerank", model=model_of(folder, template))
    engine = start_engine(folder, stages)
    (found,) = answers(engine, [EncodeJob(1, texts=DOCUMENTS[:1], query=QUERY)]).values()
    pieces = (f"A: {QUERY}", "\n", f"B: {DOCUMENTS[0]}", "\nyes?")
    ids = [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]
    logits = model(model.dummy_inputs["input_ids"].new_tensor([ids])).logits[0, -1]
    assert found[0, 0] == pytest.approx(logits[tokenizer.convert_tokens_to_ids("yes")].item(), 1e-4)


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
def test_jobs_that_are_refused(folder: Path, stages: Stages, job: EncodeJob, message: str) -> None:
    assert message in refusal(start_engine(folder, stages), job)
