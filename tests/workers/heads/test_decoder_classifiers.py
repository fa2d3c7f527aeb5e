"""A causal model with a classifier gives transformers' logits of texts, and of pairs in its
template."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

from engine_core.messages import EncodeJob
from server.models.model_setup import with_template
from tests.workers.checkpoints import LLAMA, save_randomly
from tests.workers.stage.embedding_llama import random_texts, write_tokenizer
from tests.workers.stage.encoding_engine import answers, refusal, start_engine
from tests.workers.stages import Stages
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.reranking import RerankTemplate

TEXTS = random_texts(9, 50)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classifier")


@pytest.fixture(scope="module")
def reference(folder: Path) -> LlamaForSequenceClassification:
    write_tokenizer(folder)
    torch.manual_seed(5)
    shape: dict[str, Any] = {**LLAMA, "num_labels": 3}
    config = LlamaConfig(**shape)
    return save_randomly(LlamaForSequenceClassification(config).eval(), folder)


@torch.inference_mode()
@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("query", [None, "w3 w1"])
def test_logits_are_those_of_transformers(
    folder: Path, reference: LlamaForSequenceClassification, num_stages: int, query: str | None
) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    inputs = [
        tokenizer(text)["input_ids"]
        if query is None
        else tokenizer(f"w7 {query} w8 {text}", add_special_tokens=False)["input_ids"]
        for text in TEXTS
    ]
    expected = [reference(torch.tensor([own])).logits[0].numpy() for own in inputs]
    template = RerankTemplate(pieces=("w7 {query}", "w8 {document}"))
    model = with_template(read_model_config(folder), ("a",), template, "auto")
    stages = Stages(folder, task="classify", num_stages=num_stages, model=model)
    engine = start_engine(folder, stages, max_step_tokens=33)
    (found,) = answers(engine, [EncodeJob(1, texts=TEXTS, query=query)]).values()
    assert found.shape == (len(TEXTS), 3)
    assert np.abs(found - np.stack(expected)).max() < 1e-4


def test_a_pair_without_a_template_is_refused(
    folder: Path, reference: LlamaForSequenceClassification
) -> None:
    del reference
    engine = start_engine(folder, Stages(folder, task="classify"))
    message = refusal(engine, EncodeJob(1, texts=TEXTS, query="w3 w1"))
    assert "give its template as rerank in the configuration file" in message
