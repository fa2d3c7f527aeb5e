"""A tiny Gemma that reranks, with a tokenizer as bge-reranker-v2-gemma has, and the scores of its
model card."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import GemmaConfig, GemmaForCausalLM, PreTrainedTokenizerFast

from tests.workers.checkpoints import LLAMA, save_randomly
from tests.workers.heads.reranking_qwen3 import DOCUMENTS, QUERY

PROMPT = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the "
    "query by providing a prediction of either 'Yes' or 'No'."
)
_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]


def write_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Pairs of characters with spaces among them, and other characters by their bytes. Texts begin
    with `<bos>`."""
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
        max_token_length=8,
        show_progress=False,
    )
    raw = RawTokenizer(models.BPE(fuse_unk=True, unk_token="<unk>", byte_fallback=True))
    raw.normalizer = normalizers.Replace(" ", "▁")  # pyright: ignore[reportAttributeAccessIssue]
    raw.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")  # pyright: ignore[reportAttributeAccessIssue]
    raw.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    raw.train_from_iterator([PROMPT, f"A: {QUERY}", *DOCUMENTS, "Yes", "No"] * 10, trainer)
    raw.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)
    return fast


def save_reranking_gemma(folder: Path) -> tuple[GemmaForCausalLM, PreTrainedTokenizerFast]:
    tokenizer = write_tokenizer(folder)
    torch.manual_seed(11)
    sizes = {"vocab_size": len(tokenizer), "head_dim": 16, "max_position_embeddings": 512}
    others = {"num_key_value_heads": 1, "tie_word_embeddings": True, "initializer_range": 0.1}
    shape: dict[str, Any] = {**LLAMA, **sizes, **others}
    model = GemmaForCausalLM(GemmaConfig(**shape)).eval()
    return save_randomly(model, folder), tokenizer


@torch.inference_mode()
def card_scores(
    model: GemmaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[tuple[str, str]],
    *,
    instruction: str = PROMPT,
    max_length: int = 512,
) -> np.ndarray:
    """The card's scores, float32[N]: each is the sigmoid of the logit of "Yes".

    Query, passage, line breaks and prompt (`instruction`) are tokenized apart. The passage is
    truncated: all but the prompt and the break before it has at most `max_length` tokens.
    """

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    scores: list[float] = []
    for query, document in pairs:
        first = [tokenizer.bos_token_id, *ids(f"A: {query}")]
        second = [*ids("\n"), *ids(f"B: {document}")]
        kept = second[: max_length - len(first)]
        logits = model(torch.tensor([first + kept + ids("\n") + ids(instruction)])).logits[0, -1]
        scores.append(logits[ids("Yes")[0]].sigmoid().item())
    return np.array(scores, np.float32)
