"""`penstock inspect`: what it says of a folder, in both of its forms, and what it finds wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from safetensors.torch import save_file

from server import cli
from tests.server.chat_templates import LLAMA3
from tests.server.checkpoint_folders import BERT, LLAMA, LLAMA_8B, write_checkpoint, write_json
from tests.server.conftest import Refused
from tests.server.models.fitting_weights import write_model
from tests.server.templates.test_turn_formats import HERMES_CALL, THOUGHTS, template
from tests.workers.checkpoints import worker_config
from workers.weights.loader import faults


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Any:
    """The object that `penstock inspect ARGUMENTS --json` writes."""

    def run(*arguments: object) -> dict[str, Any]:
        code = cli.main(["inspect", *map(str, arguments), "--json"])
        said = json.loads(capsys.readouterr().out)
        assert code == (1 if said["refused"] else 0)
        return said

    return run


def config_alone(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    write_json(folder / "config.json", config)
    return folder


def test_a_checkpoint_by_the_heads_of_its_files(tmp_path: Path, inspect: Any) -> None:
    said = inspect(write_model(tmp_path / "llama", LLAMA))
    model = said["model"]
    assert (said["folder"], said["refused"]) == (str(tmp_path / "llama"), [])
    kinds = model["architecture"], model["family"], model["task"]
    assert kinds == ("LlamaForCausalLM", "Llama", "generate")
    assert (model["parameters"], model["parameters_from"]) == (22_688, "weight files")
    assert (model["dtype"], model["checkpoint_dtype"]) == ("bfloat16", "float32")
    (kind,) = model["attention"]
    assert kind["layers"] == [0, 1]
    assert (kind["attention"]["causal"], kind["attention"]["window"]) == (True, None)
    # Keys and values of 2 layers, 2 heads of 8 numbers, 2 bytes each.
    assert (model["kv_bytes"], model["kv_bytes_full"]) == (1000 * 128, 128 * 128)


def test_a_configuration_by_its_shape(tmp_path: Path, inspect: Any) -> None:
    folder = config_alone(tmp_path / "llama", LLAMA_8B)
    model = inspect(folder)["model"]
    assert 8.02e9 < model["parameters"] < 8.04e9
    assert model["parameters_from"] == "shape"
    assert model["weight_bytes"] == 2 * model["parameters"]
    assert model["kv_bytes"] == 1000 * 32 * 2 * 8 * 128 * 2
    wide = inspect(folder, "--dtype", "float32", "--max-model-len", 100)["model"]
    assert wide["weight_bytes"] == 2 * model["weight_bytes"]
    # A whole block of 128 tokens.
    assert (wide["max_model_len"], wide["kv_bytes_full"]) == (100, 128 * 32 * 2 * 8 * 128 * 4)
    small = inspect(folder, "--kv-cache-dtype", "fp8")["model"]
    assert (model["kv_cache_dtype"], small["kv_cache_dtype"]) == ("bfloat16", "fp8_e4m3")
    assert small["kv_bytes"] == 1000 * 32 * 8 * (2 * 128 + 4)


def test_stages_have_the_embedding_and_a_tied_head(tmp_path: Path, inspect: Any) -> None:
    folder = config_alone(tmp_path / "llama", LLAMA_8B | {"tie_word_embeddings": True})
    one = inspect(folder)["model"]
    three = inspect(folder, "--pipeline-stages", 3)["model"]
    table = 128_256 * 4096
    assert three["parameters"] == one["parameters"]
    assert three["weight_bytes"] == one["weight_bytes"] + 2 * table
    layers = [(stage["first_layer"], stage["num_layers"]) for stage in three["stages"]]
    assert layers == [(0, 11), (11, 11), (22, 10)]
    first, middle, last = three["stages"]
    assert first["weight_bytes"] - middle["weight_bytes"] == 2 * table
    assert sum(stage["kv_bytes"] for stage in (first, middle, last)) == one["kv_bytes"]


def test_keys_behind_a_window_are_not_kept(tmp_path: Path, inspect: Any) -> None:
    windows = {"architectures": ["MistralForCausalLM"], "sliding_window": 48}
    longer = {"max_position_embeddings": 4096}
    model = inspect(write_model(tmp_path / "mistral", LLAMA | windows | longer))["model"]
    (kind,) = model["attention"]
    assert (kind["num_layers"], kind["attention"]["window"]) == (2, 48)
    # A window may be in two blocks of 128 tokens.
    assert model["kv_bytes_full"] == 2 * 128 * 128


def test_every_refusal_is_a_line(tmp_path: Path, inspect: Any) -> None:
    wrong = {
        "attention_chunk_size": 64,
        "logit_scale": 2,
        "quantization_config": {"quant_method": "gptq"},
        "residual_multiplier": 0.5,
        "router": {"experts": 8},
    }
    folder = config_alone(tmp_path / "llama", LLAMA | wrong)
    write_json(folder / "adapter_config.json", {})
    said = inspect(folder, "--pipeline-stages", 3)
    file = folder / "config.json"
    assert said["refused"] == [
        f"{file}: quantization_config with the method 'gptq' is not supported",
        f"{file}: attention_chunk_size 64 is not supported",
        f"{folder}/adapter_config.json: adapters are not supported; merge it into the weights",
        f"{file}: logit_scale 2 is not supported",
        f"{file}: residual_multiplier 0.5 is not known for this architecture",
        f'{file}: router {{"experts":8}} is not known for this architecture',
        f"tokenizer.json is missing from {folder}",
        f"model.safetensors is missing from {folder}",
        f"--pipeline-stages: {folder} has 2 layers, too few for 3 stages",
    ]
    assert said["model"]["num_layers"] == 2


def test_another_task_or_length(tmp_path: Path, inspect: Any) -> None:
    folder = write_model(tmp_path / "llama", LLAMA)
    said = inspect(folder, "--task", "embed")
    assert (said["refused"], said["model"]["task"]) == ([], "embed")
    assert said["model"]["architecture"] == "LlamaModel"
    said = inspect(folder, "--max-model-len", 129)
    assert said["refused"] == [f"--max-model-len: 129 is more than the 128 tokens of {folder}"]
    bert = write_model(tmp_path / "bert", BERT)
    (reason,) = inspect(bert, "--task", "generate")["refused"]
    assert "BertModel cannot generate" in reason
    model = inspect(bert)["model"]
    assert (model["task"], model["kv_cache"], model["kv_bytes"]) == ("embed", False, 0)


def test_a_reranker_needs_a_template(tmp_path: Path, inspect: Any) -> None:
    """Known by its name, with an answer that is a token."""
    unknown = write_model(tmp_path / "llama", LLAMA)
    (reason,) = inspect(unknown, "--task", "rerank")["refused"]
    assert reason.startswith(f"--task: how {unknown} is asked to rerank is not known by its name")
    known = write_model(tmp_path / "Qwen3-Reranker", LLAMA)
    (reason,) = inspect(known, "--task", "rerank")["refused"]
    assert reason == "--task: 'yes' is not in this model's vocabulary"
    (known / "tokenizer.json").unlink()
    (known / "vocab.txt").write_text("yes\nno\n")  # it would be converted
    assert inspect(known, "--task", "rerank")["refused"] == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["LlamaForCausalM"]}, "'LlamaForCausalM' is not supported"),
        ({"hidden_size": None}, "has no 'hidden_size'"),
    ],
)
def test_what_is_no_model_at_all(
    tmp_path: Path, inspect: Any, config: dict[str, Any], reason: str
) -> None:
    folder = write_checkpoint(tmp_path / "llama", LLAMA | config)
    (folder / "model.safetensors").write_bytes(b"short")
    said = inspect(folder)
    assert said["model"] is None
    of_config, of_weights = said["refused"]
    assert reason in of_config
    assert of_weights.startswith(f"{folder}/model.safetensors cannot be read: ")


def test_tokenizers_that_are_not_tokenizer_json(tmp_path: Path, inspect: Any) -> None:
    folder = write_model(tmp_path / "bert", BERT)
    (folder / "tokenizer.json").rename(folder / "tekken.json")
    (reason,) = inspect(folder)["refused"]
    assert "tekken.json (Tekken), which is not supported" in reason
    (folder / "vocab.txt").write_text("[UNK]\n")
    said = inspect(folder)
    assert said["refused"] == []
    assert "slow form (vocab.txt)" in said["notes"][0]


def test_every_key_of_other_files_that_is_not_obeyed(tmp_path: Path, inspect: Any) -> None:
    folder = write_checkpoint(tmp_path / "bert", BERT)
    write_json(folder / "generation_config.json", {"num_beams": 4})
    file = folder / "tokenizer_config.json"
    write_json(file, {"fold_case": True, "split_special_tokens": True, "unk_token": "<none>"})
    refused = {
        f"{folder}/generation_config.json: num_beams 4 is not supported",
        f"{file}: fold_case true is not known for a tokenizer",
        f"{file}: split_special_tokens true is not supported",
    }
    assert refused <= set(inspect(folder)["refused"])
    (folder / "tokenizer.json").rename(folder / "vocab.txt")
    assert refused <= set(inspect(folder)["refused"])


def test_a_hub_id_needs_no_weights(
    tmp_path: Path, inspect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = config_alone(tmp_path / "snapshot", LLAMA)
    fetch = Mock(return_value=snapshot)
    monkeypatch.setattr("server.models.hub_download.fetch", fetch)
    said = inspect("someone/llama")
    assert (said["source"], said["folder"]) == ("someone/llama", str(snapshot))
    assert (said["refused"], said["model"]["parameters_from"]) == ([], "shape")
    fetch.assert_called_once_with("someone/llama", ["*.json", "*.jinja"])


def test_no_such_model(refused: Refused) -> None:
    assert refused("inspect", "./nowhere") == "there is no folder ./nowhere"


def test_without_json_it_is_yaml_with_sizes_in_mib(
    tmp_path: Path, inspect: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = config_alone(tmp_path / "llama", LLAMA_8B | {"num_rows": 2})
    said = inspect(folder, "--pipeline-stages", 2)
    assert cli.main(["inspect", str(folder), "--pipeline-stages", "2"]) == 1
    shown = yaml.safe_load(capsys.readouterr().out)
    assert [*shown] == ["source", "folder", "model", "turns", "notes", "refused"]
    assert shown["refused"] == said["refused"]
    sizes = {name: size for name, size in shown["model"].items() if "_bytes" in name}
    assert sizes == {
        "weight_bytes": "15,316.0 MiB",
        "kv_bytes": "125.0 MiB",
        "kv_bytes_full": "1,024.0 MiB",
    }
    (kind,) = shown["model"]["attention"]
    assert kind["layers"] == ", ".join(map(str, range(32)))
    assert kind["attention"] == said["model"]["attention"][0]["attention"]
    assert [stage["weight_bytes"] for stage in shown["model"]["stages"]] == ["7,658.0 MiB"] * 2


def test_torch_is_not_imported(tmp_path: Path) -> None:
    """Weights are compared with their model in a process of its own, which says the same."""
    folder = write_model(tmp_path / "llama", LLAMA)
    save_file({}, folder / "model.safetensors")
    program = (
        "import sys; from server.cli import main; main(sys.argv[1:]); "
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-P", "-c", program, "inspect", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]"
    refused = json.loads("".join(lines))["refused"]
    assert "has no tensor " in refused[-1]
    assert refused == list(faults(worker_config(folder).execution))


def test_code_of_its_own_is_told(tmp_path: Path, inspect: Any) -> None:
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_x.LlamaForCausalLM"}}
    said = inspect(config_alone(tmp_path / "llama", LLAMA | own))
    assert said["notes"] == ["auto_map names code that is never run: modeling_x.LlamaForCausalLM"]
    assert not any("auto_map" in reason for reason in said["refused"])
    said = inspect(tmp_path / "llama", "--task", "embed")
    assert "auto_map names modeling_x.LlamaForCausalLM: code" in said["refused"][0]


def test_a_causal_classifier_scores_no_pairs(tmp_path: Path, inspect: Any) -> None:
    classifier = LLAMA | {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    said = inspect(config_alone(tmp_path / "llama", classifier))
    assert said["notes"][0].startswith("it scores no pairs of texts: how it is given a query")
    said = inspect(tmp_path / "llama", "--task", "rerank")
    assert any("is asked to rerank is not known by its name" in line for line in said["refused"])


def test_folders_of_other_formats(tmp_path: Path, inspect: Any) -> None:
    write_json(tmp_path / "adapter_config.json", {"base_model_name_or_path": "a/b"})
    assert inspect(tmp_path)["refused"][0].startswith(f"{tmp_path} is an adapter of a/b, not a")


def test_the_turns_of_chats_and_where_their_format_is_from(tmp_path: Path, inspect: Any) -> None:
    folder = write_model(tmp_path / "llama", LLAMA)
    assert inspect(folder)["turns"] is None
    for source, expected in [
        (template(HERMES_CALL, answer=THOUGHTS), ("learnt", ["<think>", "</think>"])),
        (template(), ("table", None)),
    ]:
        (folder / "chat_template.jinja").write_text(source)
        turns = inspect(folder)["turns"]
        assert (turns["source"], turns["reasoning"]) == expected
        assert turns["call"].startswith('<tool_call>\n{"name": "<function-name>"')
        assert (turns["why_none"], turns["call_ids"]) == ("", "any")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (template("{{ c.name }} with {{ c.arguments }}"), "its calls of tools begin like text"),
        (LLAMA3, "its chat template leaves out calls of tools"),
    ],
)
def test_why_tools_are_not_served(tmp_path: Path, inspect: Any, source: str, reason: str) -> None:
    folder = write_model(tmp_path / "llama", LLAMA)
    (folder / "chat_template.jinja").write_text(source)
    said = inspect(folder)
    assert said["turns"]["source"] is None
    assert said["turns"]["why_none"].startswith(reason)
    assert (said["refused"], said["notes"]) == ([], [])


def test_a_template_that_cannot_be_used_is_a_note(tmp_path: Path, inspect: Any) -> None:
    folder = write_model(tmp_path / "llama", LLAMA)
    (folder / "chat_template.jinja").write_text("{% for")
    said = inspect(folder)
    (note,) = said["notes"]
    assert note.startswith("it cannot chat: its chat template (chat_template.jinja): line 1: ")
    assert (said["refused"], said["turns"]) == ([], None)
