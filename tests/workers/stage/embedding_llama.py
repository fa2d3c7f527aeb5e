"""A tiny Llama that embeds, in the files that Qwen3-Embedding's publishers have, and its engine."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as library
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from engine_core.messages import DenseVectors, EncodeJob, Scores
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.fake_transport import Engine, FakeExecutor
from tests.engine_core.test_core import A
from tests.workers.checkpoints import save_llama
from tests.workers.inline_engine import Mutation, unchanged
from tests.workers.staged_engine import DecoderRunner, Visit, serve
from tests.workers.stages import NUM_BLOCKS, Stages
from workers.contract.checkpoint.checkpoint_config import read_model_config

WORDS = [f"w{number}" for number in range(200)]
PROMPTS = {"query": "w1 w2 w3 ", "document": ""}
_SPECIAL = ["<pad>", "<unk>", "<end>"]
_END = len(WORDS) + 2


def write_tokenizer(folder: Path) -> None:
    """Words at spaces, and an end token after each text."""
    vocabulary = {word: i for i, word in enumerate([*WORDS, *_SPECIAL])}
    raw = RawTokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    raw.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="$A <end>", pair="$A $B <end>", special_tokens=[("<end>", _END)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>", eos_token="<end>"
    )
    fast.save_pretrained(folder)


def save_embedding_llama(
    folder: Path, pooling: Literal["lasttoken", "mean"] = "lasttoken", **changes: Any
) -> SentenceTransformer:
    """Write the model with its modules: its config.json names the head, of which it has no weight,
    and its weights have no prefix. Returns it as sentence-transformers has it."""
    bare = folder / "bare"
    save_llama(bare, **changes)
    write_tokenizer(bare)
    transformer = library.Transformer(str(bare))
    size = transformer.get_embedding_dimension()
    modules = [transformer, library.Pooling(size, pooling_mode=pooling), library.Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS)
    model.save(str(folder), create_model_card=False)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaModel"]
    config["architectures"] = ["LlamaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    return model


def random_texts(count: int, longest: int, seed: int = 3) -> list[str]:
    """Texts of 1 to `longest` words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


def start_engine(
    folder: Path, stages: Stages, mutate: Mutation = unchanged, **changes: Any
) -> Engine:
    """An engine core over these stages, perhaps with wrong steps."""
    model = read_model_config(folder)
    tokenizer = Tokenizer.for_model(model, "auto")
    config = stages.runners[0].config
    given: dict[str, Any] = {
        "model": config.model,
        "task": config.task,
        "max_model_len": config.max_model_len,
        "max_running": config.max_running,
        "max_step_tokens": config.max_step_tokens,
        "block_size": config.block_size,
        "num_stages": len(stages.runners),
        "max_pending_rows": 1000,
        "max_pending_tokens": 100_000,
    }
    executor = FakeExecutor(DecoderRunner(stages, mutate), len(stages.runners))
    return Engine(tokenizer, model.architecture, NUM_BLOCKS, executor, **given | changes)


def answers(engine: Engine, jobs: Sequence[EncodeJob]) -> dict[int, np.ndarray]:
    """Each job's vectors or scores, float32[N, D]; every row came exactly once."""
    earlier = len(engine.clients.outputs(A))
    with torch.inference_mode():
        serve(engine, [Visit(job, number % 3) for number, job in enumerate(jobs)], random.Random(1))
    rows: dict[int, list[int]] = {job.id: [] for job in jobs}
    numbers: dict[int, list[np.ndarray]] = {job.id: [] for job in jobs}
    for outputs in engine.clients.outputs(A)[earlier:]:
        assert not outputs.failed
        for part in outputs.encoded:
            assert isinstance(part, DenseVectors | Scores)
            own = np.frombuffer(part.rows, np.int32).tolist()
            data = part.vectors if isinstance(part, DenseVectors) else part.logits
            rows[part.job] += own
            numbers[part.job].append(np.frombuffer(data, np.float32).reshape(len(own), -1))
    for job in jobs:
        assert sorted(rows[job.id]) == list(range(len(job.texts) + len(job.ids)))
    return {job: np.concatenate(numbers[job])[np.argsort(rows[job])] for job in rows}
