"""A tiny Qwen3 that reranks, in the files of a published Qwen3-Reranker, and the scores of its
model card."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.workers.checkpoints import LLAMA, save_randomly

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QUERY = "What is the capital of China?"
DOCUMENTS = [
    "The capital of China is Beijing.",
    "Gravity is a force that attracts two bodies towards each other.",
    "",
    "{query} <|im_end|>\n  no",
    "Beijing " * 40,
]
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_SPELLED = ["<think>", "</think>"]


def body(query: str, document: str, instruction: str) -> str:
    return f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"


def write_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Byte pairs, with Qwen3's special tokens."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    raw.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=_SPECIAL,
        show_progress=False,
    )
    texts = [PREFIX, body(QUERY, " ".join(DOCUMENTS), INSTRUCTION), "yes", "no"]
    raw.train_from_iterator(texts * 10, trainer)
    raw.add_tokens([AddedToken(text, normalized=False) for text in _SPELLED])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.save_pretrained(folder)
    return fast


def tiny_config(tokenizer: PreTrainedTokenizerFast, **changes: Any) -> Qwen3Config:
    sizes = {"vocab_size": len(tokenizer), "head_dim": 16, "max_position_embeddings": 512}
    return Qwen3Config(**{**LLAMA, **sizes, **changes})


def save_reranking_qwen3(
    folder: Path, **changes: Any
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    tokenizer = write_tokenizer(folder)
    torch.manual_seed(11)
    model = Qwen3ForCausalLM(tiny_config(tokenizer, **changes)).eval()
    return save_randomly(model, folder), tokenizer


def write_modules(folder: Path, yes: int, no: int, prompt: str | None = None) -> None:
    """The files of sentence-transformers' CrossEncoder, as its version 6.2 writes them."""
    library = "sentence_transformers"
    kinds = {
        "": f"{library}.base.modules.transformer.Transformer",
        "1_LogitScore": f"{library}.cross_encoder.modules.logit_score.LogitScore",
    }
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    transformer = {
        "transformer_task": "text-generation",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "logits"},
            "message": {"method": "forward", "method_output_name": "logits", "format": "flat"},
        },
        "module_output_name": "causal_logits",
    }
    model = {
        "activation_fn": "torch.nn.modules.linear.Identity",
        "default_prompt_name": None if prompt is None else "query",
        "model_type": "CrossEncoder",
        "prompts": {} if prompt is None else {"query": prompt},
    }
    score = {"true_token_id": yes, "false_token_id": no, "module_input_name": "causal_logits"}
    (folder / "1_LogitScore").mkdir(exist_ok=True)
    files = {
        "modules.json": modules,
        "sentence_bert_config.json": transformer,
        "config_sentence_transformers.json": model,
        "1_LogitScore/config.json": score,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


@torch.inference_mode()
def card_scores(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[tuple[str, str]],
    *,
    instruction: str = INSTRUCTION,
    max_length: int = 512,
) -> np.ndarray:
    """The card's probabilities of "yes": prefix, body and suffix are tokenized apart, and the body
    is truncated. float32[N]"""
    prefix, suffix = (tokenizer.encode(text, add_special_tokens=False) for text in (PREFIX, SUFFIX))
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    scores: list[float] = []
    for query, document in pairs:
        own = tokenizer(
            body(query, document, instruction),
            add_special_tokens=False,
            truncation="longest_first",
            max_length=max_length - len(prefix) - len(suffix),
        )["input_ids"]
        logits = model(torch.tensor([prefix + own + suffix])).logits[0, -1]
        scores.append(torch.log_softmax(logits[[no, yes]], 0)[1].exp().item())
    return np.array(scores, np.float32)
