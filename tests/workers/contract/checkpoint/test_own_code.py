"""Code that comes with a checkpoint: refused where it may compute another model."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.checkpoint_folders import BERT, LLAMA
from tests.workers.contract.checkpoint.config_files import PUBLISHED, read
from workers.contract.config import AskedTask
from workers.contract.model_config import UnsupportedKeyError

GTE_QWEN2 = {
    "AutoModel": "modeling_qwen.Qwen2Model",
    "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM",
}
HEADS = ("Model", "ForSequenceClassification", "ForMaskedLM")
NOMIC = "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert"
NOMICBERT = PUBLISHED["nomic-ai/nomic-embed-text-v1.5"]


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        (LLAMA, "embed"),
        (LLAMA, "rerank"),
        *((LLAMA | {"architectures": [f"Llama{head}"]}, None) for head in HEADS[:2]),
        *((BERT | {"architectures": [f"Bert{head}"]}, None) for head in HEADS),
    ],
)
def test_embedders_and_rerankers_are_refused(
    tmp_path: Path, config: dict[str, Any], asked: AskedTask | None
) -> None:
    with pytest.raises(UnsupportedKeyError) as error:
        read(tmp_path, config | {"auto_map": GTE_QWEN2}, asked)
    assert error.value.key == "auto_map"
    assert "auto_map names modeling_qwen.Qwen2Model: code" in str(error.value)
    assert "ignore_config_keys" in str(error.value)


def test_a_generator_is_served(tmp_path: Path) -> None:
    read(tmp_path, LLAMA | {"auto_map": GTE_QWEN2})


@pytest.mark.parametrize(
    "auto_map",
    [
        {"AutoConfig": "configuration_x.Config", "AutoTokenizer": ["tokenization_x.Slow", None]},
        {},
    ],
)
def test_no_model_of_its_own(tmp_path: Path, auto_map: dict[str, Any]) -> None:
    read(tmp_path, BERT | {"auto_map": auto_map})


def test_code_that_the_family_is(tmp_path: Path) -> None:
    known = {"AutoModel": f"{NOMIC}.NomicBertModel", "AutoConfig": "configuration_x.Config"}
    read(tmp_path, NOMICBERT | {"auto_map": known})
    with pytest.raises(UnsupportedKeyError, match="auto_map names modeling_other"):
        read(tmp_path, NOMICBERT | {"auto_map": {"AutoModel": "modeling_other.NomicBertModel"}})


def test_code_that_the_family_is_by_a_key(tmp_path: Path) -> None:
    """gte-Qwen2's attends both ways, and the file says so."""
    gte = PUBLISHED["Qwen/Qwen2.5-7B"] | {"auto_map": GTE_QWEN2}
    assert not read(tmp_path, gte | {"is_causal": False}, "embed").has_kv_cache
    for unsaid in ({}, {"is_causal": True}):
        with pytest.raises(UnsupportedKeyError) as error:
            read(tmp_path, gte | unsaid, "embed")
        said = 'this is known only where config.json also says {"is_causal":false}'
        assert "auto_map names modeling_qwen.Qwen2Model: code" in str(error.value)
        assert str(error.value).endswith(said)


@pytest.mark.parametrize(
    ("architecture", "module"),
    [
        ("LlamaBidirectionalModel", "llama_bidirectional_model"),
        ("LlamaEncoderModel", "modeling_llama_encoder"),
    ],
)
def test_architectures_of_own_code(tmp_path: Path, architecture: str, module: str) -> None:
    config = LLAMA | {"architectures": [architecture], "model_type": "llama_bidirec"}
    own = {"AutoModel": f"owner/name--{module}.{architecture}"}
    shape = read(tmp_path, config | {"auto_map": own, "pooling": "avg", "temperature": 1.0})
    assert not shape.has_kv_cache
    assert shape.pooling.modes == ("mean",)
    with pytest.raises(UnsupportedKeyError, match="auto_map names other"):
        read(tmp_path, config | {"auto_map": {"AutoModel": "other.LlamaModel"}})
