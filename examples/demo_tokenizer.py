"""Train and apply the byte-level BPE tokenizer of the demo model."""

from __future__ import annotations

import re
from typing import Any

import torch
from demo_documents import ASSISTANT, END, SYSTEM, USER
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<|bos|>", "<|eos|>"
SPECIAL_TOKENS = [BOS, EOS, SYSTEM, USER, ASSISTANT, END]
BOS_ID, EOS_ID, SYSTEM_ID, USER_ID, ASSISTANT_ID, END_ID = range(len(SPECIAL_TOKENS))

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' }}"
    "{% elif message['role'] in ['system', 'developer'] %}{{ '<|system|>' }}"
    "{% else %}{{ '<|user|>' }}{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% elif message['content'] %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(documents: list[str], vocab_size: int) -> Tokenizer:
    """Trains the byte-level BPE tokenizer; it prepends BOS as Llama's does."""
    # The trainer would learn the letters of the special tokens as if they were text.
    marks = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    texts = [text for document in documents for text in marks.split(document) if text]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> torch.Tensor:
    """Returns the documents as one row of token ids, each from BOS to EOS."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(documents):
        ids += encoding.ids
        ids.append(EOS_ID)
    return torch.tensor(ids, dtype=torch.long)


def tokenizer_config(length: int) -> dict[str, Any]:
    """Returns what ``tokenizer_config.json`` holds, for texts of up to ``length`` tokens."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {
        "added_tokens_decoder": {
            str(index): {"content": token, **flags, "special": True}
            for index, token in enumerate(SPECIAL_TOKENS)
        },
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT, END],
        "bos_token": BOS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "model_max_length": length,
        "pad_token": EOS,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
