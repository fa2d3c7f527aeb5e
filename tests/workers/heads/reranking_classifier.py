"""A tiny Qwen3 with a classifier of one label, in the seq-cls form of Qwen3-Reranker.

Scores are computed as by the model card: the tokenizer gets both halves of the prompt as a pair.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForSequenceClassification

from tests.workers.checkpoints import save_randomly
from tests.workers.heads.reranking_qwen3 import (
    INSTRUCTION,
    PREFIX,
    SUFFIX,
    tiny_config,
    write_tokenizer,
)


def save_reranking_classifier(
    folder: Path, **changes: Any
) -> tuple[Qwen3ForSequenceClassification, PreTrainedTokenizerFast]:
    tokenizer = write_tokenizer(folder)
    torch.manual_seed(13)
    scored = {"pad_token_id": tokenizer.pad_token_id, "num_labels": 1, **changes}
    model = Qwen3ForSequenceClassification(tiny_config(tokenizer, **scored)).eval()
    return save_randomly(model, folder), tokenizer


@torch.inference_mode()
def logits(
    model: Qwen3ForSequenceClassification,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[tuple[str, str]],
    *,
    instruction: str = INSTRUCTION,
) -> np.ndarray:
    """float32[N], by the card's two functions, `format_queries` and `format_document`."""
    found: list[float] = []
    for query, document in pairs:
        first = f"{PREFIX}<Instruct>: {instruction}\n<Query>: {query}\n"
        second = f"<Document>: {document}{SUFFIX}"
        ids = tokenizer(first, second, add_special_tokens=False)["input_ids"]
        found.append(model(torch.tensor([ids])).logits[0, 0].item())
    return np.array(found, np.float32)


def probabilities(found: np.ndarray) -> np.ndarray:
    return torch.sigmoid(torch.tensor(found)).numpy()
