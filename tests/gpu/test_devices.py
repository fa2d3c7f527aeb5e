"""Daemons on a machine with two GPUs: models on either answer as on the CPU, and take no memory of
the other."""

import json
import re
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch

from tests.e2e.daemon import Daemon, running
from tests.workers.attention_problems import attention_needs
from tests.workers.checkpoints import save_bert
from tests.workers.equivalence import DEMO, random_prompts, save_random
from tests.workers.teacher import CLEAR_GAP, TOLERANCE
from workers.attention import backend_selection
from workers.attention.backend_selection import implementations, unmet_need

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(600),
]

VOCABULARY = 4096
"""Of the demo generator's tokenizer, which both models are given."""

PROMPTS = random_prompts(VOCABULARY, count=24, longest=300)
TOKENS = 16

ON_GPU = {"dtype": torch.bfloat16, "block_size": 128, "device": "cuda"}
NEEDS = {
    "generator": attention_needs((4, 1, 128), **ON_GPU),
    "embedder": attention_needs((4, 4, 128), paged=False, **ON_GPU),
}
SAME_TEXT, OTHER_TEXT = 0.997, 0.95
"""Least cosine of a vector in bfloat16 with the one in float32, and greatest with another text's.
On the CPU they are 0.9996 and 0.934."""

START_SECONDS = 400

MIB = 1 << 20


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random Llama and a random BERT, with heads that every backend takes."""
    folders = {name: tmp_path_factory.mktemp(name) for name in NEEDS}
    save_random(folders["generator"], "heads_4_of_128_kv_1", vocab_size=VOCABULARY)
    save_bert(
        folders["embedder"],
        vocab_size=VOCABULARY,
        hidden_size=512,
        num_hidden_layers=2,
        intermediate_size=704,
        max_position_embeddings=512,
    )
    for folder in folders.values():
        for file in DEMO.glob("tokenizer*.json"):
            shutil.copy(file, folder)
    return folders


@pytest.fixture(scope="module")
def idle_memory() -> list[int]:
    """Free bytes of each GPU before any daemon: the driver takes its time over those that ended."""
    return free_memory()


@pytest.fixture(scope="module")
def reference(models: dict[str, Path]) -> Generator[Daemon]:
    on_cpu = {"device": "cpu", "threads": 4}
    with serving(models, dict.fromkeys(models, on_cpu)) as daemon:
        yield daemon


def serving(
    models: Mapping[str, Path], options: Mapping[str, Mapping[str, Any]]
) -> AbstractContextManager[Daemon]:
    """A daemon of these models, each with options of its own."""
    entries = [
        {"model": str(folder), "names": [name], **options[name]} for name, folder in models.items()
    ]
    file = models["generator"].parent / "penstock.yaml"
    file.write_text(json.dumps({"models": entries}))  # which is YAML too
    return running("--config", str(file), start_seconds=START_SECONDS)


def on_gpu(device: str, backend: str = "auto") -> dict[str, Any]:
    """Options of a model. Few sequences make few CUDA graphs."""
    return {
        "device": device,
        "attention_backend": backend,
        "max_running": 48,
        "max_step_tokens": 512,
    }


class Answers(NamedTuple):
    """What a daemon makes of PROMPTS: tokens and log-probabilities [P, TOKENS], vectors [P, D]."""

    tokens: np.ndarray
    logprobs: np.ndarray
    vectors: np.ndarray


def answers(daemon: Daemon) -> Answers:
    """All prompts at once, continued greedily, and as texts."""
    body = {"prompt": PROMPTS, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    choices = completions(daemon, body | {"logprobs": 1, "return_token_ids": True})
    embedded = post(daemon, "/v1/embeddings", {"model": "embedder", "input": PROMPTS})
    return Answers(
        np.array([choice["token_ids"] for choice in choices]),
        np.array([choice["logprobs"]["token_logprobs"] for choice in choices]),
        np.array([item["embedding"] for item in embedded["data"]]),
    )


def scores(daemon: Daemon, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities [P, TOKENS] that a daemon gives to `tokens` behind PROMPTS, and to what it
    holds for the best token in each of their places."""
    texts = [prompt + own for prompt, own in zip(PROMPTS, tokens.tolist(), strict=True)]
    choices = completions(daemon, {"prompt": texts, "max_tokens": 0, "prompt_logprobs": 1})
    places = [
        list(zip(own.tolist(), choice["prompt_logprobs"][-TOKENS:], strict=True))
        for own, choice in zip(tokens, choices, strict=True)
    ]
    chosen = [[place[str(token)]["logprob"] for token, place in row] for row in places]
    best = [[max(each["logprob"] for each in place.values()) for _, place in row] for row in places]
    return np.array(chosen), np.array(best)


def completions(daemon: Daemon, body: dict[str, Any]) -> list[Any]:
    return post(daemon, "/v1/completions", {"model": "generator"} | body)["choices"]


def post(daemon: Daemon, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(daemon.url + path, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(daemon: Daemon, reference: Daemon) -> None:
    """The daemon, in bfloat16, answers as the reference: by the rules of `tests.workers.teacher`,
    which goes on with the daemon's own tokens."""
    given, expected = answers(daemon), answers(reference)
    chosen, best = scores(reference, given.tokens)
    worst, gap = np.abs(given.logprobs - chosen).max(), (best - chosen).max()
    cosines = directions(given.vectors) @ directions(expected.vectors).T
    least = cosines.diagonal().min()
    others = (cosines - 2 * np.eye(len(cosines))).max()
    print(f"log-probabilities within {worst:.3f}, best token missed by {gap:.3f}")
    print(f"cosines from {least:.4f}, of different texts to {others:.4f}")
    assert worst <= TOLERANCE["bfloat16"]
    assert gap <= CLEAR_GAP["bfloat16"]
    assert least >= SAME_TEXT
    assert others <= OTHER_TEXT


def directions(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def backends_for(name: str) -> dict[str, str]:
    """The backend called `name` for the models that it is for, "auto" for the other, and the reason
    of a skip where it is for neither."""
    reasons = {
        model: [unmet_need(backend.capabilities, needs) for backend in implementations(name)]
        for model, needs in NEEDS.items()
    }
    if all(map(all, reasons.values())):
        pytest.skip(f"{name}: {reasons['embedder']}")
    return {model: "auto" if all(unmet) else name for model, unmet in reasons.items()}


@pytest.mark.usefixtures("idle_memory")
@pytest.mark.parametrize("name", [*backend_selection._AUTO["cuda"], "naive"])
def test_a_generator_and_an_embedder_on_a_gpu_each(
    models: dict[str, Path], reference: Daemon, name: str
) -> None:
    backends = backends_for(name)
    options = {
        "generator": on_gpu("cuda:1", backends["generator"]),
        "embedder": on_gpu("cuda:0", backends["embedder"]),
    }
    with serving(models, options) as daemon:
        check(daemon, reference)
    check_log(daemon.log, backends)


def check_log(log: Sequence[str], backends: Mapping[str, str]) -> None:
    """It says which backends were taken, which way of the gated product, and which graphs."""
    lines = "".join(line for line in log if "worker 0 of" in line)
    print(lines)
    taken = dict(re.findall(r"of (\w+): attention backend (\w+) for", lines))
    assert all(asked in (taken[model], "auto") for model, asked in backends.items())
    measured = torch.cuda.get_device_capability()[0] == 9
    # Once for all starts: what was chosen is kept.
    assert len(re.findall(r"of generator: gated product, ", lines)) <= measured
    (graphs,) = re.findall(r"of generator: CUDA graphs: (.+)", lines)
    first = implementations(taken["generator"])[0]
    assert (" decode" in graphs) == first.capabilities.graph_safe


@pytest.mark.parametrize(("device", "others"), [("cuda:1", [0]), ("cuda:0", [1]), ("cpu", [0, 1])])
def test_two_models_share_a_device_and_take_nothing_of_another(
    models: dict[str, Path],
    idle_memory: list[int],
    reference: Daemon,
    device: str,
    others: list[int],
) -> None:
    both = {"device": "cpu", "dtype": "bfloat16"} if device == "cpu" else on_gpu(device)
    with serving(models, dict.fromkeys(models, both)) as daemon:
        check(daemon, reference)
        taken = [(was - now) // MIB for was, now in zip(idle_memory, free_memory(), strict=True)]
    print(f"MiB taken of each GPU: {taken}")
    assert all(taken[other] < 32 for other in others)
    # What other processes take is seen from here.
    assert all(mib > 256 for gpu, mib in enumerate(taken[:2]) if gpu not in others)


def free_memory() -> list[int]:
    """Free bytes of each GPU. It takes some for this process, once."""
    return [torch.cuda.mem_get_info(gpu)[0] for gpu in range(torch.cuda.device_count())]
