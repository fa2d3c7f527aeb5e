"""Folders that sentence-transformers wrote: obeyed, or refused by the name of what is not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer import modules as library
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from engine_core.tokenization.tokenizer import Tokenizer
from tests.workers.checkpoints import save_bert, save_llama, save_masked_lm
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfigError

SIZE = 32
SHAPE: dict[str, Any] = {
    "hidden_size": SIZE,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 8,
}


def write_tokenizer(folder: Path) -> None:
    words = ["[PAD]", "[UNK]", "water", "falls", "Water", "[CLS]", "[SEP]", "[MASK]"]
    raw = RawTokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    save_bert(folder, **SHAPE)
    write_tokenizer(folder)
    return folder


def transformer(folder: Path, **options: Any) -> library.Transformer:
    return library.Transformer(str(folder), **options)


def saved(folder: Path, *modules: torch.nn.Module, **options: Any) -> SentenceTransformer:
    """Modules as one model, which is written to `folder`."""
    model = SentenceTransformer(modules=list(modules), device="cpu", **options)
    model.save(str(folder), create_model_card=False)
    return model


def change(file: Path, **values: Any) -> None:
    written = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(written | values))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelConfigError) as error:
        read_model_config(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_checkpoint_whose_own_vectors_are_shorter(bert: Path, tmp_path: Path) -> None:
    pooling, dense = library.Pooling(SIZE), library.Dense(SIZE, 16)
    model = saved(tmp_path, transformer(bert), pooling, dense, library.Normalize())
    assert model.encode(["water falls"]).shape == (1, 16)
    kind = "sentence_transformers.base.modules.dense.Dense"
    assert refusal(tmp_path) == f"{tmp_path / 'modules.json'}: module {kind} is not supported"


@pytest.mark.parametrize(
    "module",
    [
        library.WeightedLayerPooling(SIZE, num_hidden_layers=1),
        library.LayerNorm(SIZE),
        library.CNN(SIZE),
        library.LSTM(SIZE, SIZE),
        library.WordWeights(["water"], {"water": 1.0}),
    ],
    ids=lambda module: type(module).__name__,
)
def test_every_other_module_is_refused(bert: Path, tmp_path: Path, module: Any) -> None:
    saved(tmp_path, transformer(bert), module, library.Pooling(SIZE))
    assert f"{type(module).__name__} is not supported" in refusal(tmp_path)


def test_what_is_obeyed(bert: Path, tmp_path: Path) -> None:
    model = transformer(bert, max_seq_length=24)
    pooling = library.Pooling(SIZE, "lasttoken", include_prompt=False)
    prompts = {"query": "query: "}
    modules = (model, pooling, library.Dropout(0.5), library.Normalize())
    saved(tmp_path, *modules, prompts=prompts, similarity_fn_name="dot")
    config = read_model_config(tmp_path)
    assert (config.pooling.mode, config.pooling.normalize) == ("last", True)
    assert not config.pooling.include_prompt
    assert config.max_model_len == 24
    assert config.embedding.prompts["query"] == "query: "
    assert config.embedding.similarity == "dot"


def test_the_length_in_the_transformers_own_file_goes_before_the_tokenizers(
    bert: Path, tmp_path: Path
) -> None:
    saved(tmp_path, transformer(bert, max_seq_length=24), library.Pooling(SIZE))
    change(tmp_path / "sentence_bert_config.json", max_seq_length=48)
    assert read_model_config(tmp_path).max_model_len == 48
    change(tmp_path / "sentence_bert_config.json", max_seq_length=None)
    change(tmp_path / "tokenizer_config.json", model_max_length=10**30)
    assert read_model_config(tmp_path).max_model_len == 128


@pytest.mark.parametrize("lowercase", [True, False])
def test_texts_are_put_into_lower_case(bert: Path, tmp_path: Path, lowercase: bool) -> None:
    model = saved(tmp_path, transformer(bert, do_lower_case=lowercase), library.Pooling(SIZE))
    change(tmp_path / "sentence_bert_config.json", do_lower_case=lowercase)
    expected = model.tokenizer(["Water FALLS"])["input_ids"]
    tokenizer = Tokenizer.for_model(read_model_config(tmp_path), "auto")
    assert [encoding.ids for encoding in tokenizer.raw.encode_batch(["Water FALLS"])] == expected


@pytest.mark.parametrize(
    "mode", ["mean_sqrt_len_tokens", "weightedmean", ["cls", "mean"], ["mean", "weightedmean"]]
)
def test_poolings_that_are_not_supported(bert: Path, tmp_path: Path, mode: Any) -> None:
    """As the library writes them now, and as it did before."""
    pooling = library.Pooling(SIZE, mode)
    saved(tmp_path, transformer(bert), pooling)
    modes = [mode] if isinstance(mode, str) else mode
    named = f"pooling_mode {' + '.join(modes)} is not supported"
    assert named in refusal(tmp_path)
    file = tmp_path / "1_Pooling" / "config.json"
    suffix = {"mean": "mean_tokens", "weightedmean": "weightedmean_tokens", "cls": "cls_token"}
    earlier = {f"pooling_mode_{suffix.get(own, own)}": True for own in modes}
    file.write_text(json.dumps({"word_embedding_dimension": SIZE} | earlier))
    assert named in refusal(tmp_path)


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        (["Transformer", "Normalize", "Pooling"], "Transformer, Normalize, Pooling do not begin"),
        (["Transformer", "Pooling", "Pooling"], "Transformer, Pooling, Pooling do not"),
        (["Transformer"], "Transformer do not begin with Transformer, Pooling"),
        (["Pooling", "Transformer"], "Pooling, Transformer do not begin"),
        (["Transformer", "SpladePooling"], "SpladePooling is not supported"),
        (["Router", "Pooling"], "Router is not supported"),
        (["BoW"], "BoW is not supported"),
    ],
)
def test_modules_in_another_order(bert: Path, tmp_path: Path, kinds: list[str], named: str) -> None:
    saved(tmp_path, transformer(bert), library.Pooling(SIZE))
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in kinds]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert named in refusal(tmp_path)


def test_modules_of_the_checkpoints_own(bert: Path, tmp_path: Path) -> None:
    saved(tmp_path, transformer(bert), library.Pooling(SIZE))
    file = tmp_path / "modules.json"
    modules = json.loads(file.read_text())
    file.write_text(json.dumps([modules[0] | {"path": "0_Transformer"}, modules[1]]))
    assert "a model in '0_Transformer' is not supported" in refusal(tmp_path)
    file.write_text(json.dumps([modules[0] | {"type": "custom_st.Transformer"}, modules[1]]))
    assert "module custom_st.Transformer is not supported" in refusal(tmp_path)


def test_normalised_token_states(bert: Path, tmp_path: Path) -> None:
    states = library.Normalize(module_input_name="token_embeddings")
    saved(tmp_path, transformer(bert), library.Pooling(SIZE), states)
    assert '2_Normalize/config.json: module_input_name "token_embeddings"' in refusal(tmp_path)


TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("sentence_bert_config", {"transformer_task": "retrieval"}),
        ("sentence_bert_config", {"module_output_name": "sentence_embedding"}),
        ("sentence_bert_config", {"modality_config": {"text": TEXT, "message": TEXT}}),
        ("sentence_bert_config", {"processing_kwargs": {"text": {"add_special_tokens": False}}}),
        ("sentence_bert_config", {"query_length": 32}),
        ("sentence_bert_config", {"document_length": 32}),
        ("sentence_bert_config", {"query_expansion": {"length": 32}}),
        ("sentence_bert_config", {"tokenizer_name_or_path": "bert-base-cased"}),
        ("config_sentence_transformers", {"model_type": "MultiVectorEncoder"}),
        ("config_sentence_transformers", {"truncate_dim": 8}),
        ("config_sentence_transformers", {"max_active_dims": 8}),
    ],
)
def test_settings_that_are_not_obeyed(bert: Path, tmp_path: Path, file: str, values: Any) -> None:
    saved(tmp_path, transformer(bert), library.Pooling(SIZE))
    read_model_config(tmp_path)
    change(tmp_path / f"{file}.json", **values)
    ((key, value),) = values.items()
    shown = json.dumps(value, separators=(",", ":"))[:80]
    assert f"{file}.json: {key} {shown}" in refusal(tmp_path)


def test_arguments_for_loading(bert: Path, tmp_path: Path) -> None:
    saved(tmp_path, transformer(bert), library.Pooling(SIZE))
    file = tmp_path / "sentence_bert_config.json"
    change(file, model_args={"add_pooling_layer": False}, config_args={"trust_remote_code": True})
    read_model_config(tmp_path)
    change(file, config_args={"is_decoder": True})
    assert "sentence_bert_config.json: is_decoder true is not supported" in refusal(tmp_path)


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


@pytest.mark.parametrize("kind", ["Pooling", "LogitScore"])
def test_a_generator_that_is_to_be_pooled(tmp_path: Path, kind: str) -> None:
    save_llama(tmp_path)
    modules = [
        {"type": f"sentence_transformers.models.{own}", "path": ""} for own in ("Transformer", kind)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert f"{kind} is not supported" in refusal(tmp_path)


def test_a_classifier_whose_states_are_pooled_is_an_encoder(bert: Path, tmp_path: Path) -> None:
    saved(tmp_path, transformer(bert), library.Pooling(SIZE))
    change(tmp_path / "config.json", architectures=["BertForSequenceClassification"])
    assert read_model_config(tmp_path).architecture == "BertModel"
