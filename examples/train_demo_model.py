"""Train the small Llama-architecture text generator that the daemon ships with.

Takes Debian documentation packages (``.deb`` files or the folders they were
unpacked into), or the JSON lines file that ``demo_corpus.py`` made of them,
trains a byte-level BPE tokenizer and a 4-million-parameter model from scratch,
and writes a folder that ``transformers`` loads as it is.  The defaults are those
of the committed model; CUDA is used where present.

    python examples/train_demo_model.py *.deb --out server/demo/generator
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from demo_corpus import load_pages, summarize
from demo_documents import make_documents
from demo_tokenizer import (
    BOS_ID,
    END_ID,
    EOS_ID,
    SYSTEM_ID,
    USER_ID,
    encode_documents,
    tokenizer_config,
    train_tokenizer,
)
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

IGNORED = -100  # the target that cross_entropy leaves out

VALIDATION_SHARE = 0.02


def is_held_out(page: dict[str, Any]) -> bool:
    """Whether a whole page is kept for validation; the same pages in every run."""
    return zlib.crc32(page["page"].encode()) % 1000 < 1000 * VALIDATION_SHARE


def cut_windows(ids: torch.Tensor, length: int) -> torch.Tensor:
    """Cuts a row of token ids into windows of ``length`` inputs and their targets."""
    rows = (len(ids) - 1) // length
    starts = torch.arange(rows).unsqueeze(1) * length
    return ids[starts + torch.arange(length + 1)]


def draw_windows(
    pages: list[dict[str, Any]], tokenizer: Tokenizer, epoch: int, options: argparse.Namespace
) -> torch.Tensor:
    """Returns the windows of one epoch, in the order they are trained on."""
    rng = random.Random(f"{options.seed}/{epoch}")
    ids = encode_documents(tokenizer, make_documents(pages, rng))
    windows = cut_windows(ids, options.length)
    order = list(range(len(windows)))
    rng.shuffle(order)
    return windows[order]


def draw_batches(
    pages: list[dict[str, Any]], tokenizer: Tokenizer, options: argparse.Namespace
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields batches of windows without end, each with the epoch that it belongs to."""
    windows = torch.empty(0, options.length + 1, dtype=torch.long)
    # The next epoch is drawn in the background, as its tokenization takes seconds.
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(draw_windows, pages, tokenizer, 0, options)
        for epoch in count():
            windows = torch.cat([windows, coming.result()])
            coming = pool.submit(draw_windows, pages, tokenizer, epoch + 1, options)
            while len(windows) >= options.batch:
                yield epoch, windows[: options.batch]
                windows = windows[options.batch :]


def model_config(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what ``config.json`` holds."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS_ID,
        "eos_token_id": [EOS_ID, END_ID],
        "head_dim": options.hidden // options.heads,
        "hidden_act": "silu",
        "hidden_size": options.hidden,
        "initializer_range": 0.02,
        "intermediate_size": options.intermediate,
        "max_position_embeddings": options.length,
        "mlp_bias": False,
        "num_attention_heads": options.heads,
        "num_hidden_layers": options.layers,
        "num_key_value_heads": options.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": options.vocab,
    }


def make_optimizer(model: LlamaForCausalLM, options: argparse.Namespace) -> torch.optim.AdamW:
    """Returns AdamW with weight decay on the matrices only."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.95))


def rate_at(step: int, options: argparse.Namespace) -> float:
    """Returns the learning rate of a step: a short warm-up, then a cosine to 2%."""
    if step < options.warmup:
        return float(options.rate) * (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return float(options.rate) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)


def batch_loss(
    model: LlamaForCausalLM, windows: torch.Tensor, options: argparse.Namespace
) -> torch.Tensor:
    """Returns the mean next-token loss over a batch of windows."""
    windows = windows.to(options.device)
    inputs, targets = windows[:, :-1], windows[:, 1:]
    # A user's turn is given, never generated: a text must not begin with its mark.
    targets = targets.where((targets != USER_ID) & (targets != SYSTEM_ID), IGNORED)
    with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
        logits = model(input_ids=inputs, use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@torch.no_grad()
def validation_loss(
    model: LlamaForCausalLM, windows: torch.Tensor, options: argparse.Namespace
) -> float:
    """Returns the mean loss over the pages held out of the training."""
    model.eval()
    losses = [
        batch_loss(model, part, options).item() * len(part) for part in windows.split(options.batch)
    ]
    model.train()
    return sum(losses) / len(windows)


def train(
    model: LlamaForCausalLM,
    batches: Iterator[tuple[int, torch.Tensor]],
    held_out: torch.Tensor,
    options: argparse.Namespace,
) -> None:
    """Trains the model for the given number of steps, printing progress."""
    optimizer = make_optimizer(model, options)
    started = time.monotonic()
    recent: list[torch.Tensor] = []  # the losses since the last report
    for step, (epoch, windows) in enumerate(islice(batches, options.steps)):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, options)
        loss = batch_loss(model, windows, options)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.detach())
        if len(recent) == options.report or step + 1 == options.steps:
            validation = validation_loss(model, held_out, options)
            print(
                f"step {step + 1:5}/{options.steps}  "
                f"tokens {(step + 1) * options.batch * options.length / 1e6:7.1f}M  "
                f"train {torch.stack(recent).mean().item():.4f}  validation {validation:.4f}  "
                f"{time.monotonic() - started:7.1f} s  epoch {epoch}",
                flush=True,
            )
            recent.clear()


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON file as people read it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_model(model: LlamaForCausalLM, tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    """Writes the weights in bf16, the tokenizer and the three JSON files."""
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save(str(out / "tokenizer.json"))
    write_json(out / "config.json", model_config(options))
    write_json(
        out / "generation_config.json",
        {
            "bos_token_id": BOS_ID,
            "do_sample": True,
            "eos_token_id": [EOS_ID, END_ID],
            "pad_token_id": EOS_ID,
            "temperature": 0.8,
            "top_k": 50,
            "top_p": 0.9,
        },
    )
    write_json(out / "tokenizer_config.json", tokenizer_config(options.length))


@torch.no_grad()
def check_saved(held_out: torch.Tensor, options: argparse.Namespace) -> None:
    """Reloads the folder and prints its held-out loss and the spread of its logits."""
    model = LlamaForCausalLM.from_pretrained(options.out, dtype=torch.float32)
    model.to(options.device)
    options.precision = "float32"
    loss = validation_loss(model, held_out, options)
    model.eval()
    logits = model(input_ids=held_out[:4, :-1].to(options.device)).logits.float()
    size = (options.out / "model.safetensors").stat().st_size
    print(f"saved weights: {size} bytes, {model.num_parameters()} parameters")
    print(f"held-out loss {loss:.4f}, perplexity {math.exp(loss):.2f}")
    print(f"standard deviation of the logits over the vocabulary {logits.std(-1).mean():.3f}")


def parse_arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("inputs", nargs="+", type=Path, help=".deb files, folders, or one .jsonl corpus")
    add("--out", type=Path, required=True, help="the folder to write the model to")
    add("--steps", type=int, default=2400, help="optimizer steps (%(default)s)")
    add("--batch", type=int, default=16, help="windows a step (%(default)s)")
    add("--length", type=int, default=1024, help="tokens a window (%(default)s)")
    add("--rate", type=float, default=4e-3, help="peak learning rate (%(default)s)")
    add("--warmup", type=int, default=100, help="warm-up steps (%(default)s)")
    add("--weight-decay", type=float, default=0.3, help="on the matrices (%(default)s)")
    add("--vocab", type=int, default=4096, help="tokenizer entries (%(default)s)")
    add("--hidden", type=int, default=256, help="hidden size (%(default)s)")
    add("--intermediate", type=int, default=544, help="MLP size (%(default)s)")
    add("--layers", type=int, default=5, help="layers (%(default)s)")
    add("--heads", type=int, default=8, help="query heads (%(default)s)")
    add("--kv-heads", type=int, default=4, help="key and value heads (%(default)s)")
    add("--seed", type=int, default=20, help="seed of weights and data order (%(default)s)")
    add("--report", type=int, default=100, help="steps between reports (%(default)s)")
    add("--threads", type=int, help="CPU threads (PyTorch's own choice)")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", default=device, help="cuda or cpu (%(default)s)")
    add("--precision", choices=["bf16", "float32"], help="(bf16 on CUDA, else float32)")
    options = parser.parse_args()
    options.precision = options.precision or ("bf16" if options.device == "cuda" else "float32")
    return options


def main() -> None:
    """Trains and saves the model from the command line."""
    options = parse_arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    pages = load_pages(options.inputs)
    print(summarize(pages))
    training = [page for page in pages if not is_held_out(page)]
    rng = random.Random(options.seed)
    tokenizer = train_tokenizer(make_documents(training, rng), options.vocab)
    documents = make_documents([page for page in pages if is_held_out(page)], rng)
    held_out = cut_windows(encode_documents(tokenizer, documents), options.length)
    print(f"{held_out.numel()} held-out tokens of {len(pages) - len(training)} pages")
    model = LlamaForCausalLM(LlamaConfig(**model_config(options)))
    model.to(options.device)
    print(f"{model.num_parameters()} parameters on {options.device}, {options.precision}")
    train(model, draw_batches(training, tokenizer, options), held_out, options)
    save_model(model, tokenizer, options)
    check_saved(held_out, options)


if __name__ == "__main__":
    main()
