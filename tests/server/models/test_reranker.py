"""What a causal model needs to rerank: a template, known or given, and one token an answer."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.models.model_setup import with_template
from server.models.model_source import SetupError
from tests.workers.checkpoints import save_bert
from tests.workers.heads import reranking_gemma
from tests.workers.heads.reranking_classifier import save_reranking_classifier
from tests.workers.heads.reranking_qwen3 import (
    INSTRUCTION,
    PREFIX,
    SUFFIX,
    body,
    save_reranking_qwen3,
    write_modules,
)
from workers.contract.checkpoint.architectures import TaskError, task_of
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfig, ModelConfigError
from workers.contract.reranking import KNOWN_TEMPLATES, RerankTemplate

GIVEN = RerankTemplate(pieces=("Q: {query} D: {document}", "?"), positive="yes", negative="no")
NAMED = ("Qwen/Qwen3-Reranker-0.6B",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_reranking_qwen3(folder)
    return folder


def complete(
    model: ModelConfig, given: RerankTemplate | None, *sources: str
) -> tuple[RerankTemplate, tuple[int, ...]]:
    declared = with_template(model, sources or ("a",), given, "auto").reranking
    assert declared is not None
    return declared.known_template, declared.token_ids


def test_the_known_template_is_the_card() -> None:
    template = KNOWN_TEMPLATES["Qwen3-Reranker"]
    assert template.pieces == (PREFIX, body("{query}", "{document}", "{instruction}"), SUFFIX)
    assert template.instruction == INSTRUCTION
    assert template.fault() is None


def test_the_other_known_template_is_its_card(tmp_path: Path) -> None:
    _, tokenizer = reranking_gemma.save_reranking_gemma(tmp_path)
    model = read_model_config(tmp_path, "rerank")
    template, ids = complete(model, None, "BAAI/bge-reranker-v2-gemma")
    pieces = template.filled("a", None)
    assert pieces == ("<bos>", "A: a", "\n", "B: ", "\n", reranking_gemma.PROMPT)
    assert (ids, template.negative) == ((tokenizer.get_vocab()["Yes"],), None)
    assert template.takes_instruction
    assert template.fault() is None


def test_a_generator_reranks_if_it_is_asked_to(folder: Path) -> None:
    assert task_of(read_model_config(folder)) == "generate"
    model = read_model_config(folder, "rerank")
    assert (task_of(model), model.num_labels, model.sigmoid_scores) == ("rerank", 1, True)
    template, ids = complete(model, None, "/models/qwen3-reranker-0.6b/snapshots/1")
    assert template == KNOWN_TEMPLATES["Qwen3-Reranker"]
    assert len(set(ids)) == 2
    assert complete(model, GIVEN, *NAMED)[0] == GIVEN, "which wins"
    with pytest.raises(SetupError, match="--task: how a is asked to rerank is not known by its"):
        complete(model, None)


def test_sentence_transformers_files_are_obeyed(tmp_path: Path) -> None:
    _, tokenizer = save_reranking_qwen3(tmp_path)
    yes, no = (tokenizer.get_vocab()[word] for word in ("yes", "no"))
    write_modules(tmp_path, yes, no, prompt="Judge.")
    model = read_model_config(tmp_path)
    assert task_of(model) == "rerank"
    template, ids = complete(model, None, *NAMED)
    assert (template.instruction, ids) == ("Judge.", (yes, no))
    with pytest.raises(SetupError, match=r"default prompt \('Judge.'\) has no place"):
        complete(model, GIVEN)
    write_modules(tmp_path, yes, no + 1)
    with pytest.raises(SetupError, match=r"'yes' and 'no' have the ids .*, and the checkpoint's"):
        complete(read_model_config(tmp_path), None, *NAMED)
    assert task_of(read_model_config(tmp_path, "generate")) == "generate"


def test_an_unknown_key_of_the_module_stops_the_start(tmp_path: Path) -> None:
    save_reranking_qwen3(tmp_path)
    write_modules(tmp_path, 5, 6)
    (tmp_path / "1_LogitScore/config.json").write_text('{"true_token_id": 5, "temperature": 2}')
    with pytest.raises(ModelConfigError, match="temperature"):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pieces": ("{query}",)}, r"--rerank: pieces hold {document} 0 times; it is needed once"),
        ({"pieces": ("{query} {document} {document}",)}, "2 times; it is needed once"),
        ({"pieces": ("{query} {document}?",)}, "what follows it is a piece of its own"),
        ({"pieces": ("{document}",)}, "pieces do not hold {query}"),
        ({"instruction": "Judge."}, "an instruction and {instruction} in the pieces are given"),
        ({"pieces": ("{query} {instruction} {document}",)}, "are given together"),
        ({"positive": None}, "--rerank: positive is missing"),
        ({"positive": "yes, indeed"}, "'yes, indeed' has to be one token of this model; it is"),
    ],
)
def test_templates_that_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    given = msgspec.structs.replace(GIVEN, **changes)
    with pytest.raises(SetupError, match=message):
        complete(read_model_config(folder, "rerank"), given)


def test_a_classifier_has_the_pieces_and_no_answers(tmp_path: Path) -> None:
    save_reranking_classifier(tmp_path)
    model = read_model_config(tmp_path)
    template, ids = complete(model, None, "tomaarsen/Qwen3-Reranker-0.6B-seq-cls")
    assert (template.pieces, ids) == (KNOWN_TEMPLATES["Qwen3-Reranker"].pieces, ())
    own = RerankTemplate(pieces=("question:{query} \n \n passage:{document}",))
    assert complete(model, own, *NAMED) == (own, ())
    assert task_of(with_template(model, NAMED, None, "auto")) == "classify"
    with pytest.raises(SetupError, match="--rerank: positive and negative are for generators"):
        complete(model, GIVEN)
    # Without a template it still classifies, if nobody asks for more.
    assert with_template(model, ("a",), None, "auto") == model
    assert not model.reads_pairs
    with pytest.raises(SetupError, match=r"--task: how a is asked to .*: pieces, instruction$"):
        with_template(model, ("a",), None, "auto", "rerank")


def test_models_that_need_no_template(tmp_path: Path) -> None:
    save_bert(tmp_path, labels=1)
    model = read_model_config(tmp_path, "rerank")
    assert with_template(model, NAMED, None, "auto") == model
    with pytest.raises(SetupError, match="BertForSequenceClassification is not used as a reranker"):
        with_template(model, NAMED, GIVEN, "auto")


def test_a_decoder_without_an_lm_head(tmp_path: Path) -> None:
    save_bert(tmp_path)
    with pytest.raises(TaskError, match="BertModel cannot rerank; it can embed"):
        read_model_config(tmp_path, "rerank")
