"""Folders that sentence-transformers wrote: obeyed, or refused by the name of what is not."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer import modules as library

from engine_core.tokenization.tokenizer import Tokenizer
from tests.workers.checkpoints import save_bert, save_llama, save_masked_lm
from tests.workers.contract.checkpoint.library_folders import (
    change,
    saved,
    transformer,
    write_tokenizer,
)
from tests.workers.stage.embedding_llama import PROMPTS, save_embedding_llama
from workers.contract.checkpoint.architectures import TaskError
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import AskedTask
from workers.contract.model_config import (
    DenseConfig,
    LayerNormConfig,
    ModelConfigError,
    NormalizeConfig,
    PoolingConfig,
)
from workers.contract.reranking import RerankConfig

SIZE = 32
IDENTITY = torch.nn.Identity()
SHAPE: dict[str, Any] = {
    "hidden_size": SIZE,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 8,
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    save_bert(folder, **SHAPE)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def original(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder")
    dense, norm = library.Dense(SIZE, 16, activation_function=IDENTITY), library.LayerNorm(16)
    saved(folder, transformer(bert), library.Pooling(SIZE), dense, norm, library.Normalize())
    return folder


@pytest.fixture
def embedder(original: Path, tmp_path: Path) -> Path:
    """A folder of its own for a BERT with four modules, which is supported."""
    return Path(shutil.copytree(original, tmp_path / "embedder"))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelConfigError) as error:
        read_model_config(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def write_modules(folder: Path, *kinds: str) -> str:
    """The modules' types, as a message lists them."""
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    modules = [{"type": own, "path": str(i) if i else ""} for i, own in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))
    return ", ".join(types)


def test_what_is_obeyed(bert: Path, tmp_path: Path) -> None:
    model = transformer(bert, max_seq_length=24)
    pooling = library.Pooling(SIZE, ("lasttoken", "cls"), include_prompt=False)
    prompts = {"query": "query: "}
    dense = library.Dense(2 * SIZE, 16, bias=False, activation_function=torch.nn.ReLU())
    behind = (library.Dropout(0.5), library.Normalize(), dense, library.LayerNorm(16))
    saved(tmp_path, model, pooling, *behind, prompts=prompts, similarity_fn_name="dot")
    config = read_model_config(tmp_path)
    assert config.pooling == PoolingConfig(modes=("lasttoken", "cls"), include_prompt=False)
    assert config.modules == (
        NormalizeConfig(),
        DenseConfig(path="4_Dense", in_features=64, out_features=16, bias=False, activation="ReLU"),
        LayerNormConfig(path="5_LayerNorm", size=16),
    )
    assert (config.normalized, config.vector_size) == (False, 16)
    assert config.max_model_len == 24
    assert config.embedding.prompts["query"] == "query: "
    assert config.embedding.similarity == "dot"


def test_the_length_in_the_transformers_own_file_goes_before_the_tokenizers(
    embedder: Path,
) -> None:
    change(embedder / "tokenizer_config.json", model_max_length=24)
    change(embedder / "sentence_bert_config.json", max_seq_length=48)
    assert read_model_config(embedder).max_model_len == 48
    change(embedder / "sentence_bert_config.json", max_seq_length=None)
    assert read_model_config(embedder).max_model_len == 24
    change(embedder / "tokenizer_config.json", model_max_length=10**30)
    assert read_model_config(embedder).max_model_len == 128


@pytest.mark.parametrize("lowercase", [True, False])
def test_texts_are_put_into_lower_case(bert: Path, tmp_path: Path, lowercase: bool) -> None:
    model = saved(tmp_path, transformer(bert, do_lower_case=lowercase), library.Pooling(SIZE))
    change(tmp_path / "sentence_bert_config.json", do_lower_case=lowercase)
    expected = model.tokenizer(["Water FALLS"])["input_ids"]
    tokenizer = Tokenizer.for_model(read_model_config(tmp_path), "auto")
    assert [encoding.ids for encoding in tokenizer.raw.encode_batch(["Water FALLS"])] == expected


TRANSFORMER_FILES = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]


@pytest.mark.parametrize("name", TRANSFORMER_FILES)
def test_every_name_of_the_transformers_file(embedder: Path, name: str) -> None:
    """As the library, the first that says anything is taken."""
    (embedder / TRANSFORMER_FILES[0]).write_text("{}")
    for other in TRANSFORMER_FILES[TRANSFORMER_FILES.index(name) + 1 :]:
        change(embedder / other, max_seq_length=99)
    change(embedder / name, max_seq_length=24, do_lower_case=True)
    config, loaded = read_model_config(embedder), SentenceTransformer(str(embedder), device="cpu")
    assert config.max_model_len == loaded.max_seq_length == 24
    assert config.lowercase
    change(embedder / name, query_length=8)
    assert refusal(embedder) == f"{embedder / name}: query_length 8 is not supported"


TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
OF_MODULES: list[tuple[str, dict[str, Any], str]] = [
    ("1_Pooling", {"pooling_mode": "mode"}, "'mode'"),
    ("1_Pooling", {"pooling_mode": []}, "pooling_mode"),
    ("1_Pooling", {"pooling_mode": ["mean", "first"]}, "'first'"),
    ("1_Pooling", {"pooling_mode_median": True}, "pooling_mode_median"),
    ("1_Pooling", {"embedding_dimension": 48}, "embedding_dimension 48 does not fit .* 32"),
    ("1_Pooling", {"word_embedding_dimension": 48}, "word_embedding_dimension 48 .* 32"),
    ("2_Dense", {"in_features": 48}, "in_features 48 does not fit .* have 32 numbers"),
    ("2_Dense", {"out_features": 0}, "out_features"),
    ("2_Dense", {"out_features": 24}, "3_LayerNorm/config.json: dimension 16 .* 24 numbers"),
    ("2_Dense", {"use_residual": True}, "use_residual true"),
    ("2_Dense", {"gated": True}, "gated"),
    ("2_Dense", {"module_input_name": "token_embeddings"}, 'module_input_name "token_embeddings"'),
    ("2_Dense", {"module_output_name": "scores"}, 'module_output_name "scores"'),
    ("2_Dense", {"activation_function": "torch.nn.modules.activation.ELU"}, "activation.ELU is"),
    ("2_Dense", {"activation_function": "my.own.Tanh"}, r"my\.own\.Tanh is not supported"),
    ("2_Dense", {"activation_function": "torch.nnx.Tanh"}, r"torch\.nnx\.Tanh is not supported"),
    ("3_LayerNorm", {"eps": 1e-3}, "eps"),
    ("4_Normalize", {"module_input_name": "token_embeddings"}, 'name "token_embeddings"'),
]
OF_THE_MODEL: list[tuple[str, dict[str, Any]]] = [
    ("sentence_bert_config.json", {"transformer_task": "retrieval"}),
    ("sentence_bert_config.json", {"module_output_name": "sentence_embedding"}),
    ("sentence_bert_config.json", {"modality_config": {"text": TEXT, "message": TEXT}}),
    ("sentence_bert_config.json", {"processing_kwargs": {"text": {"add_special_tokens": False}}}),
    ("sentence_bert_config.json", {"query_length": 32}),
    ("sentence_bert_config.json", {"document_length": 32}),
    ("sentence_bert_config.json", {"query_expansion": {"length": 32}}),
    ("sentence_bert_config.json", {"tokenizer_name_or_path": "bert-base-cased"}),
    ("sentence_bert_config.json", {"odd": 1}),
    ("config_sentence_transformers.json", {"model_type": "MultiVectorEncoder"}),
    ("config_sentence_transformers.json", {"truncate_dim": 8}),
    ("config_sentence_transformers.json", {"max_active_dims": 8}),
    ("config_sentence_transformers.json", {"query_expansion": None}),
    ("config_sentence_transformers.json", {"attend_to_mask_tokens": True}),
]


def named_in(file: str, values: dict[str, Any]) -> str:
    """A pattern of the file, the key and the value."""
    ((key, value),) = values.items()
    shown = json.dumps(value, separators=(",", ":"))[:80]
    return re.escape(f"{file}: {key} {shown}")


@pytest.mark.parametrize(
    ("file", "values", "named"),
    [
        *((f"{module}/config.json", values, named) for module, values, named in OF_MODULES),
        *((file, values, named_in(file, values)) for file, values in OF_THE_MODEL),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "`int` >= 0 - at .*max_seq_length"),
    ],
)
def test_what_a_file_says_and_is_not_obeyed(
    embedder: Path, file: str, values: dict[str, Any], named: str
) -> None:
    read_model_config(embedder)
    change(embedder / file, **values)
    refused = refusal(embedder)
    assert re.search(named, refused), refused
    assert f"{embedder}/" in refused


@pytest.mark.parametrize("name", ["torch.nn.Tanh", "torch.nn.modules.activation.Tanh", None])
def test_names_of_an_activation(embedder: Path, name: str | None) -> None:
    change(embedder / "2_Dense" / "config.json", activation_function=name)
    module, *_ = read_model_config(embedder).modules
    assert isinstance(module, DenseConfig)
    assert module.activation == "Tanh"


def test_modules_that_are_not_where_they_must_be(embedder: Path) -> None:
    file = embedder / "modules.json"
    model, *behind = json.loads(file.read_text())
    file.write_text(json.dumps([model, *behind, behind[2] | {"name": "again"}]))
    assert refusal(embedder) == f"{file}: two modules are in the folder '3_LayerNorm'"
    named = [own | {"name": "0"} for own in behind]
    file.write_text(json.dumps([model | {"name": "0"}, *named]))
    assert refusal(embedder) == f"{file}: two modules have the name '0'"
    file.write_text(json.dumps([model | {"path": "0_Transformer"}, *behind]))
    assert "a model in '0_Transformer' is not supported" in refusal(embedder)
    file.write_text(json.dumps([model | {"type": "custom_st.Transformer"}, *behind]))
    assert refusal(embedder).startswith(f"{file}: custom_st.Transformer, ")


@pytest.mark.parametrize(
    "kinds",
    [
        "Transformer Normalize Pooling",
        "Transformer Pooling Pooling",
        "Transformer",
        "Pooling Transformer",
        "Transformer SpladePooling",
        "Router Pooling",
        "BoW",
        "Transformer CNN Pooling",
        "Transformer Pooling WordWeights",
    ],
)
def test_modules_in_another_order_or_of_another_kind(embedder: Path, kinds: str) -> None:
    types = write_modules(embedder, *kinds.split())
    assert f"{types} are not supported (first Transformer, Pooling, then " in refusal(embedder)


def test_arguments_for_loading(embedder: Path) -> None:
    file = embedder / "sentence_bert_config.json"
    change(file, model_args={"add_pooling_layer": False}, config_args={"trust_remote_code": True})
    read_model_config(embedder)
    change(file, config_args={"is_decoder": True})
    assert "sentence_bert_config.json: is_decoder true is not supported" in refusal(embedder)


@pytest.mark.parametrize(
    ("activation", "sigmoid"), [(torch.nn.Identity(), False), (torch.nn.Sigmoid(), True)]
)
def test_a_cross_encoders_activation(tmp_path: Path, activation: Any, sigmoid: bool) -> None:
    own, written = tmp_path / "own", tmp_path / "written"
    save_bert(own, labels=1, **SHAPE)
    write_tokenizer(own)
    model = CrossEncoder(str(own), activation_fn=activation, device="cpu")
    model.save(str(written), create_model_card=False)
    assert read_model_config(written).sigmoid_scores is sigmoid
    settings = written / "config_sentence_transformers.json"
    change(settings, activation_fn="torch.nn.modules.activation.Tanh")
    assert "activation function torch.nn.modules.activation.Tanh" in refusal(written)
    change(settings, activation_fn=None, prompts={"q": "query: "}, default_prompt_name="q")
    assert "a default prompt ('query: ') is not supported for scores" in refusal(written)


def test_a_sparse_encoder(tmp_path: Path) -> None:
    own, written = tmp_path / "own", tmp_path / "written"
    save_masked_lm(own, **SHAPE)
    write_tokenizer(own)
    SparseEncoder(str(own), device="cpu").save(str(written), create_model_card=False)
    assert read_model_config(written).architecture == "BertForMaskedLM"
    change(written / "config_sentence_transformers.json", max_active_dims=16)
    assert "max_active_dims 16 is not supported" in refusal(written)


def test_the_answers_of_a_causal_reranker(tmp_path: Path) -> None:
    save_llama(tmp_path)
    write_modules(tmp_path, "Transformer", "LogitScore")
    change(tmp_path / "sentence_bert_config.json", transformer_task="text-generation")
    (tmp_path / "1").mkdir()
    file = tmp_path / "1" / "config.json"
    for other, tokens in ((None, (9,)), (0, (9, 0))):
        change(file, true_token_id=9, false_token_id=other)
        assert read_model_config(tmp_path).reranking == RerankConfig(token_ids=tokens)
    change(file, module_input_name="logits")
    assert f'{file}: module_input_name "logits" is not supported' in refusal(tmp_path)


def test_a_generator_with_another_module(tmp_path: Path) -> None:
    save_llama(tmp_path)
    types = write_modules(tmp_path, "Transformer", "WordWeights")
    assert f"{types} are not supported (first Transformer, then nothing)" in refusal(tmp_path)


def test_a_decoder_whose_states_are_pooled_by_the_last_token_is_an_embedder(
    tmp_path: Path,
) -> None:
    save_embedding_llama(tmp_path)
    config = read_model_config(tmp_path)
    assert config.architecture == "LlamaModel"
    assert config.has_kv_cache
    assert config.pooling == PoolingConfig(modes=("lasttoken",))
    assert config.embedding.prompts == PROMPTS
    change(tmp_path / "1_Pooling/config.json", pooling_mode="mean")
    assert "pooling_mode mean over a causal model is not supported (lasttoken)" in refusal(tmp_path)


def test_a_classifier_whose_states_are_pooled_is_an_encoder(embedder: Path) -> None:
    change(embedder / "config.json", architectures=["BertForSequenceClassification"])
    assert read_model_config(embedder).architecture == "BertModel"


def test_a_task_that_is_asked_for_overrides_the_modules(tmp_path: Path) -> None:
    """Without modules a generator that is to embed pools its last token."""
    save_embedding_llama(tmp_path)
    generator = read_model_config(tmp_path, "generate")
    assert generator.architecture == "LlamaForCausalLM"
    assert generator.modules == ()
    own = read_model_config(tmp_path, "embed")
    assert own == read_model_config(tmp_path)
    (tmp_path / "modules.json").unlink()
    embedder = read_model_config(tmp_path, "embed")
    assert (embedder.architecture, embedder.pooling) == (own.architecture, own.pooling)
    assert (own.modules, embedder.modules) == ((NormalizeConfig(),), ())


@pytest.mark.parametrize(
    ("labels", "task", "able"),
    [(0, "generate", "embed"), (0, "rerank", "embed"), (1, "generate", "embed or rerank")],
)
def test_a_task_that_a_checkpoint_cannot_do(
    tmp_path: Path, labels: int, task: AskedTask, able: str
) -> None:
    save_bert(tmp_path, labels=labels)
    with pytest.raises(TaskError, match=f"cannot {task}; it can {able}$"):
        read_model_config(tmp_path, task)
