"""`generation_config.json`: a model's own defaults for sampling."""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from server.settings.server_config import GenerationDefaults
from workers.contract.checkpoint.config_keys import ConfigKeys, Neutral, Refuse, stop
from workers.contract.checkpoint.folder_files import optional, read_config
from workers.contract.model_config import ModelConfigError
from workers.contract.token_sampling import TokenSampling

_NEUTRAL: Neutral = {
    "num_beams": (1, None),
    "num_beam_groups": (1, None),
    "penalty_alpha": (0, None),
    "typical_p": (1, None),
    "top_h": (None,),
    "epsilon_cutoff": (0, None),
    "eta_cutoff": (0, None),
    "encoder_repetition_penalty": (1, None),
    "no_repeat_ngram_size": (0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "exponential_decay_length_penalty": (None,),
    "min_length": (0, None),
    "min_new_tokens": (0, None),
    "bad_words_ids": ([], None),
    "force_words_ids": ([], None),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "suppress_tokens": ([], None),
    "begin_suppress_tokens": ([], None),
    "sequence_bias": ([], {}, None),
    "guidance_scale": (1, None),
    "watermarking_config": (None,),
    "dola_layers": (None,),
    "stop_strings": ([], None),
}
"""Keys of transformers' GenerationConfig (version 5) that change texts and are not supported here,
with their values that change nothing."""


class _GenerationFile(msgspec.Struct):
    """The keys that are obeyed, all optional; `TokenSampling` has the same names."""

    eos_token_id: int | list[int] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=sys.float_info.max)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=2)] | None = None


def read_generation_defaults(folder: Path, refuse: Refuse = stop) -> GenerationDefaults:
    """Read `generation_config.json`; without `eos_token_id` there, take that of `config.json`.

    An explicit `do_sample: false` means greedy. Raises ModelConfigError, naming the file and the
    key, for a value of the wrong type or out of range; one that is not supported goes to `refuse`.
    """
    path, fallback = folder / "generation_config.json", folder / "config.json"
    values = optional(folder, path.name, dict[str, Any]) or {}
    raw = _checked(path, values)
    ConfigKeys(path, values, refuse=refuse).neutral(_NEUTRAL)
    eos = raw.eos_token_id
    if eos is None:
        eos = _checked(fallback, read_config(folder)).eos_token_id
    if isinstance(eos, int):
        eos = [eos]
    if raw.do_sample is False:
        raw.temperature = 0.0
    sampling = TokenSampling().overridden_by(raw)
    return GenerationDefaults(eos_token_ids=tuple(eos or ()), sampling=sampling)


def _checked(path: Path, values: dict[str, Any]) -> _GenerationFile:
    try:
        return msgspec.convert(values, _GenerationFile)
    except msgspec.ValidationError as error:
        raise ModelConfigError(f"{path} is not valid: {error}") from None
