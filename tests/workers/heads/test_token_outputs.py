"""Numbers of tokens beside transformers in float32: vectors of ColBERT and BGE-M3, lexical weights,
labels."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import random_texts, save_bert, save_randomly
from tests.workers.models.encoders import _FAMILIES
from tests.workers.stages import EncoderStages
from tests.workers.step_maker import encoder_step
from workers.contract.checkpoint.architectures import task_of
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.messages import EmbedOutput
from workers.contract.model_config import ModelConfigError
from workers.weights.checkpoint import CheckpointError

TEXTS = [[max(token, 5) for token in text] for text in random_texts(3, 17, 2, 40, 5, 31)]
"""Without tokens for padding, which have positions of their own in transformers."""
HIDDEN = 64
TOKEN_FAMILIES = """
    Bert Roberta XLMRoberta Camembert DistilBert MPNet NomicBert ModernBert Electra Albert EuroBert
    DebertaV2
""".split()


def run(folder: Path, *outputs: str, stages: int = 1, **changes: Any) -> EmbedOutput:
    task = task_of(read_model_config(folder))
    engine = EncoderStages(
        folder, task=task, num_stages=stages, backend=changes.pop("backend", "auto")
    )
    requested = dict.fromkeys(outputs, bytes([1] * len(TEXTS)))
    step = msgspec.structs.replace(encoder_step(TEXTS), requested=requested, **changes)
    output = engine.run(step)
    assert isinstance(output, EmbedOutput)
    return output


def close(found: bytes, expected: list[torch.Tensor]) -> None:
    whole = torch.cat(expected).numpy()
    np.testing.assert_allclose(np.frombuffer(found, np.float32), whole.ravel(), atol=2e-5)


def random_layer(rows: int, columns: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {"weight": torch.randn(rows, columns) / 8, "bias": torch.randn(rows)}


@torch.inference_mode()
def states(model: Any, unattended: int = 0) -> list[torch.Tensor]:
    """The last state of each token, those of the last ones hidden from all."""
    found = []
    for text in TEXTS:
        mask = torch.ones(1, len(text))
        hidden = min(unattended, len(text) - 1)
        mask[0, len(text) - hidden :] = 0
        found.append(model(torch.tensor([text]), attention_mask=mask).last_hidden_state[0])
    return found


@pytest.mark.parametrize("family", TOKEN_FAMILIES)
def test_labels_of_tokens(tmp_path: Path, family: str) -> None:
    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(**_FAMILIES[family], num_labels=5)
    model = getattr(transformers, f"{family}ForTokenClassification")(config).eval()
    save_randomly(model, tmp_path)
    assert task_of(read_model_config(tmp_path)) == "classify_tokens"
    with torch.inference_mode():
        expected = [model(torch.tensor([text])).logits[0] for text in TEXTS]
    for stages in (1, 2):
        output = run(tmp_path, "token_vectors", stages=stages)
        close(output.tokens["token_vectors"], expected)


def save_pylate(folder: Path, **model_file: Any) -> torch.Tensor:
    """PyLate's files beside a model; returns the layer's weight."""
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    modules = [
        {"idx": i, "path": path, "type": kind} for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(model_file))
    dense = {"in_features": HIDDEN, "out_features": 24, "bias": False}
    dense["activation_function"] = "torch.nn.modules.linear.Identity"
    (folder / "1_Dense").mkdir()
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
    weight = random_layer(24, HIDDEN)["weight"]
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    return weight


@pytest.mark.parametrize("family", ["Bert", "ModernBert", "MPNet"])
@pytest.mark.parametrize("backend", ["sdpa", "naive"])
def test_token_vectors_of_pylate(tmp_path: Path, family: str, backend: str) -> None:
    """Also of texts whose last tokens none attends to, as a query's masks, beside others."""
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}Model")
    own = model(getattr(transformers, f"{family}Config")(**_FAMILIES[family])).eval()
    save_randomly(own, tmp_path)
    weight = save_pylate(tmp_path, similarity_fn_name="MaxSim", query_length=32)
    for unattended in (0, 12):
        lens = [min(unattended, len(text) - 1) for text in TEXTS]
        hidden = np.array(lens, np.int32).tobytes() if unattended else b""
        output = run(tmp_path, "token_vectors", backend=backend, unattended_lens=hidden)
        expected = [each @ weight.T for each in states(own, unattended)]
        close(output.tokens["token_vectors"], expected)
        assert output.vectors == b""


def save_colbert(folder: Path, **metadata: Any) -> tuple[Any, torch.Tensor]:
    """A checkpoint as ColBERT's own code saves it."""
    model = save_bert(folder)
    weight = random_layer(24, HIDDEN)["weight"]
    own = load_file(folder / "model.safetensors").items()
    tensors = {f"bert.{name}": each for name, each in own} | {"linear.weight": weight}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    (folder / "artifact.metadata").write_text(json.dumps({"dim": 24, "nbits": 2} | metadata))
    return model, weight


def test_token_vectors_of_colberts_own_code(tmp_path: Path) -> None:
    model, weight = save_colbert(tmp_path, query_maxlen=16, doc_maxlen=60)
    config = read_model_config(tmp_path)
    assert config.late_interaction is not None
    assert (config.late_interaction.query_length, config.max_model_len) == (16, 59)
    assert config.late_interaction.query_marker == "[unused0]"
    output = run(tmp_path, "token_vectors", stages=2)
    close(output.tokens["token_vectors"], [each @ weight.T for each in states(model)])


@torch.inference_mode()
def weighing_half(layer: dict[str, torch.Tensor], model: Any, text: list[int]) -> Any:
    """The layer with a bias that leaves half of a text's tokens weights above 0."""
    products = model(torch.tensor([text])).last_hidden_state[0] @ layer["weight"].T
    return layer | {"bias": -products.median()[None].clone()}


def save_m3(folder: Path) -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(7)
    config = transformers.XLMRobertaConfig(**_FAMILIES["XLMRoberta"])
    model = save_randomly(transformers.XLMRobertaModel(config).eval(), folder)
    colbert, sparse = random_layer(HIDDEN, HIDDEN), random_layer(1, HIDDEN)
    sparse = weighing_half(sparse, model, TEXTS[3])
    torch.save(colbert, folder / "colbert_linear.pt")
    torch.save(sparse, folder / "sparse_linear.pt")
    return model, colbert, sparse


@pytest.mark.parametrize("stages", [1, 2])
def test_all_vectors_of_one_pass_are_those_of_bge_m3(tmp_path: Path, stages: int) -> None:
    model, colbert, sparse = save_m3(tmp_path)
    output = run(tmp_path, "token_weights", "token_vectors", "states", stages=stages)
    expected = states(model)
    linear = torch.nn.functional.linear
    close(output.tokens["states"], expected)
    close(output.tokens["token_vectors"], [linear(each, **colbert) for each in expected])
    weights = [linear(each, **sparse).relu() for each in expected]
    assert 0 < (torch.cat(weights) == 0).float().mean() < 1
    close(output.tokens["token_weights"], weights)
    alone = run(tmp_path, stages=stages)
    assert output.vectors == alone.vectors, "the dense vector is the same with others and alone"


def spoil(folder: Path, what: Any) -> None:
    torch.save(what, folder / "sparse_linear.pt")


class _Code:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            {"weight": torch.zeros(2, HIDDEN), "bias": torch.zeros(1)},
            r"weight.*\[2, 64\].*\[1, 64\]",
        ),
        ({"weight": torch.zeros(1, HIDDEN)}, "sparse_linear.pt has no tensor linear.bias"),
        ([1], "sparse_linear.pt holds a list"),
        (_Code(), "sparse_linear.pt cannot be read"),
    ],
)
def test_spoilt_layers_are_named(tmp_path: Path, what: Any, message: str) -> None:
    save_m3(tmp_path)
    spoil(tmp_path, what)
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"dim": "24"}, "artifact.metadata"),
        ({"query_maxlen": 0}, "artifact.metadata"),
        ({"query_maxlen": 1000}, "queries of 1000 tokens are more than its 128 positions"),
    ],
)
def test_bad_metadata_is_named(tmp_path: Path, metadata: Any, message: str) -> None:
    save_colbert(tmp_path, **metadata)
    with pytest.raises(ModelConfigError, match=message):
        read_model_config(tmp_path)
