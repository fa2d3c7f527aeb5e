"""What kind of model an architecture is that is not served, as far as its name or the keys of its
`config.json` tell."""

import re
from collections.abc import Mapping
from typing import Any

_BY_NAME = {
    r"VL|Vision|Llava|Vlm|Idefics|Image": "a vision-language model",
    r"Audio|Whisper|Speech|Wav2Vec": "a model for audio",
    r"Moe|MoE|Mixtral|DeepseekV|DbrxFor|GptOss": "a mixture of experts",
    r"Mamba|Rwkv|Jamba|Zamba|Bamba": "a state-space model",
    r"^M?T5|Bart|Marian|Pegasus|EncoderDecoder": "an encoder-decoder",
    r"RewardModel$": "a reward model",
    r"Bidirectional": "a decoder that attends in both directions",
    r"ForTokenClassification$": "a classifier of tokens",
    r"ForQuestionAnswering$": "a model that marks answers in a text",
}
_BY_KEY = {
    "vision_config": "a vision-language model",
    "audio_config": "a model for audio",
    "is_encoder_decoder": "an encoder-decoder",
    "n_routed_experts": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "ssm_cfg": "a state-space model",
    "state_size": "a state-space model",
    "auto_map": "a model by code of its own, which is never run",
}


def kind_of(architecture: str, values: Mapping[str, Any]) -> str | None:
    """The kind in words, None if it is not known. `values` are those of `config.json`."""
    for pattern, kind in _BY_NAME.items():
        if re.search(pattern, architecture):
            return kind
    for key, kind in _BY_KEY.items():
        if values.get(key):
            return kind
    return None
