"""A Gemma that reranks gives the scores of bge-reranker-v2-gemma's model card."""

from pathlib import Path

import numpy as np
import pytest
from transformers import GemmaForCausalLM, PreTrainedTokenizerFast

from engine_core.messages import EncodeJob, Tokenization
from server.api.classify import label_scores
from server.models.model_setup import with_template
from tests.engine_core.fake_transport import Engine
from tests.workers.heads.reranking_gemma import PROMPT, card_scores, save_reranking_gemma
from tests.workers.heads.reranking_qwen3 import DOCUMENTS, QUERY
from tests.workers.stage.encoding_engine import answers, start_engine
from tests.workers.stages import Stages
from workers.contract.checkpoint.checkpoint_config import read_model_config

TOLERANCE = 1e-5
PAIRS = [(QUERY, document) for document in DOCUMENTS]
Reference = tuple[GemmaForCausalLM, PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bge-reranker-v2-gemma")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return save_reranking_gemma(folder)


@pytest.fixture(scope="module")
def stages(folder: Path, reference: Reference) -> Stages:
    read = read_model_config(folder, "rerank")
    return Stages(folder, task="rerank", model=with_template(read, (str(folder),), None, "auto"))


def scores(engine: Engine, job: EncodeJob) -> np.ndarray:
    """As the server answers them, float32[N]"""
    (logits,) = answers(engine, [job]).values()
    return label_scores(logits, engine.config.execution.model)[:, 0]


@pytest.mark.parametrize("max_step_tokens", [29, 2048])
def test_scores_are_those_of_the_card(
    folder: Path, stages: Stages, reference: Reference, max_step_tokens: int
) -> None:
    expected = card_scores(*reference, PAIRS)
    assert expected.max() - expected.min() > 0.3
    engine = start_engine(folder, stages, max_step_tokens=max_step_tokens)
    found = scores(engine, EncodeJob(1, texts=DOCUMENTS, query=QUERY))
    assert np.abs(found - expected).max() < TOLERANCE


def test_an_instruction_is_the_prompt_of_the_card(
    folder: Path, stages: Stages, reference: Reference
) -> None:
    own = "Say 'Yes' if query A and passage B mean the same."
    engine = start_engine(folder, stages)
    found = scores(engine, EncodeJob(1, texts=DOCUMENTS, query=QUERY, instruction=own))
    assert np.abs(found - card_scores(*reference, PAIRS, prompt=own)).max() < TOLERANCE
    assert np.abs(found - card_scores(*reference, PAIRS)).max() > 1000 * TOLERANCE


def test_only_the_passage_is_cut(folder: Path, stages: Stages, reference: Reference) -> None:
    """The card's limit is without the prompt and the line break before it."""
    _, tokenizer = reference
    behind = len(tokenizer(PROMPT, add_special_tokens=False)["input_ids"]) + 1
    cut = Tokenization(truncate_to=40 + behind)
    found = scores(
        start_engine(folder, stages),
        EncodeJob(1, texts=DOCUMENTS, query=QUERY, tokenization=cut),
    )
    expected = card_scores(*reference, PAIRS, max_length=40)
    assert np.abs(found - expected).max() < TOLERANCE
    assert np.abs(expected - card_scores(*reference, PAIRS)).max() > 1000 * TOLERANCE
