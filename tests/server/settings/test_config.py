"""What is read beside a model's weights, and from the environment."""

from pathlib import Path
from typing import Any

import pytest

from server.models.model_setup import read_generation_defaults
from server.settings.settings import GenerationDefaults, api_key_from, child_environment
from tests.server.checkpoint_folders import write_json
from workers.contract.model_config import ModelConfigError
from workers.contract.token_sampling import TokenSampling


def defaults(folder: Path, generation: Any = None, **config: Any) -> GenerationDefaults:
    write_json(folder / "config.json", config)
    if generation is not None:
        write_json(folder / "generation_config.json", generation)
    return read_generation_defaults(folder)


def test_a_folder_that_says_nothing_samples_from_the_whole_distribution(tmp_path: Path) -> None:
    assert defaults(tmp_path) == GenerationDefaults(
        eos_token_ids=(), sampling=TokenSampling(temperature=1.0, top_p=1.0, top_k=0)
    )


def test_generation_config_is_obeyed(tmp_path: Path) -> None:
    sampling = {
        "temperature": 0.6, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1
    }  # fmt: skip
    written = sampling | {"eos_token_id": [7, 9], "max_length": 4096, "num_beams": 1}
    assert defaults(tmp_path, written, eos_token_id=2) == GenerationDefaults(
        eos_token_ids=(7, 9), sampling=TokenSampling(**sampling)
    )


@pytest.mark.parametrize(
    ("written", "ends", "temperature"),
    [
        ({"eos_token_id": 5, "temperature": 0.6}, (5,), 0.6),
        ({"eos_token_id": [5, 6], "do_sample": False, "temperature": 0.6}, (5, 6), 0.0),
        ({"eos_token_id": None, "do_sample": True, "temperature": 0.6}, (2, 3), 0.6),
        ({"do_sample": None, "temperature": None}, (2, 3), 1.0),
        (None, (2, 3), 1.0),
    ],
    ids=str,
)
def test_ends_and_the_temperature(
    tmp_path: Path, written: Any, ends: tuple[int, ...], temperature: float
) -> None:
    """Ends are config.json's where there are none. Only `do_sample: false` is greedy."""
    read = defaults(tmp_path, written, eos_token_id=[2, 3])
    assert (read.eos_token_ids, read.sampling.temperature) == (ends, temperature)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("temperature", "hot", "is not valid: .*temperature"),
        ("temperature", -1, "is not valid: .*temperature"),
        ("top_p", 1.5, "is not valid: .*top_p"),
        ("top_k", 2.5, "is not valid: .*top_k"),
        ("num_beams", 4, "num_beams"),
        ("no_repeat_ngram_size", 3, "no_repeat_ngram_size"),
        ("suppress_tokens", [1], "suppress_tokens"),
    ],
)
def test_what_is_wrong_or_not_done_is_named(
    tmp_path: Path, key: str, value: Any, reason: str
) -> None:
    with pytest.raises(ModelConfigError, match=rf"generation_config\.json:? {reason}"):
        defaults(tmp_path, {key: value})


def test_the_api_key_comes_from_its_variable() -> None:
    assert api_key_from({"PENSTOCK_API_KEY": "secret"}) == "secret"
    assert api_key_from({"PENSTOCK_API_KEY": ""}) is None
    assert api_key_from({}) is None


def test_a_childs_thread_pools_are_sized() -> None:
    inherited = {"PATH": "/bin", "OMP_NUM_THREADS": "64"}
    environment = child_environment(
        compute_threads=3, tokenizer_threads=2, settings={"EXTRA": "1"}, environment=inherited
    )
    pools = [f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS")]
    tokenizers = {"RAYON_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true"}
    given = {"PATH": "/bin", "EXTRA": "1"} | tokenizers
    assert environment == dict.fromkeys(pools, "3") | given
