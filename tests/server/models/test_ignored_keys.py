"""`ignore_config_keys`: keys of three files that may stay unread, none that is not refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from server import cli
from server.models.model_source import SetupError
from tests.server.checkpoint_folders import BERT, LLAMA, write_checkpoint, write_json
from tests.server.support import set_up
from workers.contract.model_config import ModelConfigError


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (LLAMA | {"router": {"experts": 8}}, "router"),
        (LLAMA | {"logit_scale": 2}, "logit_scale"),
        (LLAMA | {"rope_scaling": {"rope_type": "default", "mscale": 2}}, "rope_scaling.mscale"),
        (LLAMA | {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        (BERT | {"auto_map": {"AutoModel": "modeling_x.BertModel"}}, "auto_map"),
    ],
)
def test_keys_of_config_json(tmp_path: Path, config: dict[str, Any], key: str) -> None:
    folder = write_checkpoint(tmp_path / "model", config)
    with pytest.raises(ModelConfigError, match=key):
        set_up(folder)
    served = set_up(folder, ignore_config_keys=(key,))
    plain = {name: value for name, value in config.items() if name != key.partition(".")[0]}
    write_json(folder / "config.json", plain)
    assert set_up(folder).execution.model == served.execution.model


def test_keys_of_the_other_files(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", LLAMA | {"router": 1})
    write_json(folder / "generation_config.json", {"num_beams": 4, "temperature": 0.5})
    write_json(folder / "tokenizer_config.json", {"stemmer": "porter"})
    with pytest.raises(ModelConfigError, match="num_beams 4 is not supported"):
        set_up(folder, ignore_config_keys=("router", "stemmer"))
    with pytest.raises(ModelConfigError, match='stemmer "porter" is not known for a tokenizer'):
        set_up(folder, ignore_config_keys=("router", "num_beams"))
    served = set_up(folder, ignore_config_keys=("num_beams", "router", "stemmer"))
    assert served.generation.sampling.temperature == 0.5


@pytest.mark.parametrize("key", ["ruoter", "rms_norm_eps", "use_cache", "truncate_dim"])
def test_a_name_without_effect_is_refused(tmp_path: Path, key: str) -> None:
    """Not there, obeyed, bookkeeping."""
    folder = write_checkpoint(tmp_path / "model", LLAMA | {"router": 1, "use_cache": True})
    with pytest.raises(SetupError, match=f"--ignore-config-keys: {key}: none of config.json,"):
        set_up(folder, ignore_config_keys=("router", key))


def test_other_files_are_not_meant(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", BERT)
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 8})
    with pytest.raises(ModelConfigError, match="truncate_dim 8 is not supported"):
        set_up(folder, ignore_config_keys=("truncate_dim",))


def test_inspect_is_told_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "config.json", LLAMA | {"router": 1, "num_rows": 2})
    cli.main(["inspect", str(tmp_path), "--ignore-config-keys", "router,nothing", "--json"])
    refused = json.loads(capsys.readouterr().out)["refused"]
    assert not any("router" in line for line in refused)
    assert f"{tmp_path}/config.json: num_rows 2 is not known for this architecture" in refused
    assert any(line.startswith("--ignore-config-keys: nothing: none of") for line in refused)
