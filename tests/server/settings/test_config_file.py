"""The configuration file: what it can say, and what every mistake in it is called."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.settings.config_file import read_config_file
from server.settings.settings import ModelSettings, Settings, SettingsError
from tests.server.settings.everything import EVERYTHING, everything


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "penstock.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def complaint(folder: Path, text: str | bytes) -> str:
    """Why the file is refused: one line, without the file's name."""
    file = write(folder, text)
    with pytest.raises(SettingsError) as caught:
        read_config_file(file)
    line = str(caught.value)
    assert line.startswith(str(file))
    assert "\n" not in line
    return line.removeprefix(str(file)).removeprefix(": ").strip()


def test_everything_that_it_can_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    settings = read_config_file(write(tmp_path, EVERYTHING))
    assert settings == everything(tmp_path)
    assert all(f"\n{name}:" in EVERYTHING for name in Settings.__struct_fields__)
    assert all(f" {name}:" in EVERYTHING for name in ModelSettings.__struct_fields__)


def test_models_alone_leave_the_rest_at_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    settings = read_config_file(write(tmp_path, "\ufeffmodels: [{model: llama}]"))
    assert settings == Settings(models=(ModelSettings(model=str(tmp_path / "llama")),))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prot: 1", "prot: unknown key; did you mean port?"),
        ("max-sequences: 1", "max-sequences: unknown key; did you mean max_sequences?"),
        ("api_key: k", "api_key: unknown key; did you mean api_key_files?"),
        ("zzz: 1", "zzz: unknown key"),
        ("max_requests: 1", "max_requests: is gone; max_sequences bounds what is in flight"),
        ("port: 65536", "port: expected `int` <= 65535"),
        ("port: '80'", "port: expected `int`, got `str`"),
        ("port: true", "port: expected `int`, got `bool`"),
        ("host: ''", "host: expected `str` of length >= 1"),
        ("api_workers: 0", "api_workers: expected `int` >= 1"),
        ("max_sequences: 99999999999999999999999", "max_sequences: expected `int` <= 2147483647"),
        ("max_body_size: lots", "max_body_size: 'lots' is not a size, such as 2GiB or 512MB"),
        ("api_key_files: keys", "api_key_files: expected `array`, got `str`"),
        ("api_key_files: [a, 2]", "api_key_files[1]: expected `str`, got `int`"),
        ("cors_origins: [https://a, b]", "cors_origins[1]: 'b' is not an origin"),
        ("log_level: loud", "log_level: invalid enum value 'loud'; one of debug, info"),
        ("otlp_traces_endpoint: http://me:key@a/b", "otlp_traces_endpoint: 'http://me:key@a/b' is"),
        ("otlp_traces_endpoint: localhost:4317", "otlp_traces_endpoint: 'localhost:4317' is not a"),
        ("metrics_alias: tgi", "metrics_alias: invalid enum value 'tgi'; one of vllm"),
        ("memory_share: 1.01", "memory_share: expected `float` <= 1.0"),
        ("memory_share: .nan", "memory_share: expected `float` > 0.0"),
        ("drain_timeout: .inf", "drain_timeout: expected `float` <= 1000000.0"),
        ("true: 2", "a key is no text"),
        ("? [a]\n: b", ":1:3: a key is text"),
    ],
)
def test_a_wrong_line_is_named_by_its_key(tmp_path: Path, line: str, message: str) -> None:
    assert complaint(tmp_path, f"{line}\nmodels: [{{model: a}}]").startswith(message)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("", "models: expected `array`, got `null`"),
        ("[]", "models: expected `array` of length >= 1"),
        ("{model: a}", "models: expected `array`, got `object`"),
        ("[a]", "models[0]: expected `object`, got `str`"),
        ("[{model: a}, null]", "models[1]: expected `object`, got `null`"),
        ("[{model: a}, {}]", "models[1].model: is required"),
        ("[{model: [a]}]", "models[0].model: expected `str`, got `array`"),
        ("[{model: a}, {model: b, max_runing: 1}]",
         "models[1].max_runing: unknown key; did you mean max_running?"),
        ("[{model: a, num_stages: 1}]",
         "models[0].num_stages: unknown key; did you mean pipeline_stages?"),
        ("[{model: a, port: 1}]", "models[0].port: unknown key"),
        ("[{model: a, names: b}]", "models[0].names: expected `array`, got `str`"),
        ("[{model: a, names: [b, null]}]", "models[0].names[1]: expected `str`, got `null`"),
        ("[{model: a, device: tpu}]", "models[0].device: 'tpu' is not auto, cpu, cuda or cuda:N"),
        ("[{model: a, kv_cache_dtype: fp8_e5m2}]",
         ("models[0].kv_cache_dtype: invalid enum value 'fp8_e5m2'; "
          "one of auto, fp8, fp8_e4m3, float32, bfloat16, float16")),
        ("[{model: a, dtype: int3}]",
         "models[0].dtype: invalid enum value 'int3'; one of float32, bfloat16, float16, auto"),
        ("[{model: a, attention_backend: x}]",
         "models[0].attention_backend: invalid enum value 'x'; one of auto, flash_attn"),
        ("[{model: a, kv_cache_memory: -1k}]", "models[0].kv_cache_memory: '-1k' is not a size"),
        ("[{model: a, stage_layers: [9, 0]}]", "models[0].stage_layers[1]: expected `int` >= 1"),
        ("[{model: a, data_parallel_size: 0}]",
         "models[0].data_parallel_size: expected `int` >= 1"),
        ("[{model: a, data_parallel_size: -1}]",
         "models[0].data_parallel_size: expected `int` >= 1"),
        ("[{model: a, stage_layers: 9}]",
         "models[0].stage_layers: expected `array`, got `int`"),
        ("[{model: a, stage_layers: '9,-1'}]",
         "models[0].stage_layers: '9,-1' is not a number of layers above 0 for each stage"),
        ("[{model: a, 3: x}]", "a key of models[0] is no text"),
    ],
)  # fmt: skip
def test_a_wrong_model_is_named_by_its_path(tmp_path: Path, models: str, message: str) -> None:
    assert complaint(tmp_path, f"models: {models}").startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n---\n", "is empty"),
        ("- a\n- b", "expected `object`, got `array`"),
        ("port: 1\nmodels: []\nport: 2", ":3:1: the key port is given twice"),
        ("models:\n - {model: a, threads: 1, threads: 1}", ":2:27: the key threads is given twice"),
        ("port: 1\n\tmodels: []", ":2:1: found character '\\t' that cannot start any token"),
        ("port: [1", ":1:9: expected ',' or ']'"),
        ("port: 1\n host: a", ":2:6: mapping values are not allowed"),
        ("a: 'b", ":1:6: found unexpected end of stream"),
        ("port: 1\n---\nport: 2", ":2:1: but found another document"),
        ("models: &m [{model: a}]\nx: *m", ":2:4: aliases are not read"),
        ("<<: {port: 1}\nmodels: [{model: a}]", "<<: unknown key"),
        ("models: !!python/object/apply:os.system [ls]", ":1:9: tags are not read"),
        ("models: !!set {a}", ":1:9: tags are not read"),
        ("port: " + "9" * 5000, "Exceeds the limit"),
        ("a: \x00", "unacceptable character #x0000"),
        ("[" * 1000, "is nested too deeply"),
        (b"host: \xff", "cannot be read: 'utf-8' codec can't decode byte 0xff in position 6"),
        ("#" * (1 << 20) + "\n", "is larger than 1 MiB"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_what_is_no_configuration(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert complaint(tmp_path, text).startswith(message)


@pytest.mark.parametrize("text", ["2024-01-01", "2024-13-45", "1:30", "0b", "=", "<<"])
def test_a_name_is_what_it_looks_like(tmp_path: Path, text: str) -> None:
    """Some texts are dates or numbers in YAML 1.1: they are texts here, or refused."""
    file = write(tmp_path, f"models: [{{model: a, names: [{text}]}}]")
    try:
        assert read_config_file(file).models[0].names == (text,)
    except SettingsError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gone.yaml", "No such file or directory"),
        (".", "Is a directory"),
        ("penstock.yaml/under", "Not a directory"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, why: str) -> None:
    write(tmp_path, "")
    with pytest.raises(SettingsError) as caught:
        read_config_file(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name} cannot be read: {why}"


def test_settings_are_frozen() -> None:
    settings: Any = Settings(models=(ModelSettings(model="a"),))
    for struct in (settings, settings.models[0]):
        with pytest.raises(AttributeError):
            struct.port = 1
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
