"""How a token is sampled from its logits: the one place where a sampling parameter is declared.

Requests and a model's `generation_config.json` set parameters by name. The columns of the workers'
table of slots are the fields of `TokenSampling` (`workers/sampling/sampling_table.py`).

A new parameter is a field here, for requests one of the same name in `server/schemas/sampling.py`,
a row in `server/schemas/known_options.toml`, and its effect in `workers/sampling/sampler.py`,
`workers/sampling/cuda.py` and its kernels.
"""

from typing import Any, Self

import msgspec


class TokenSampling(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """From a row's logits to a token. The defaults are neutral: they change nothing.

    Applied in this order:

    1. A grammar's mask, then `logit_bias` and tokens that must not come yet (they are not here:
       their size differs from request to request, see `SlotInit`).
    2. Penalties, by the tokens that the row has seen:
       `repetition_penalty`  divides positive logits of all tokens seen, prompt included, and
                             multiplies negative ones; neutral: 1
       `frequency_penalty`   subtracted once for each time that a token was sampled; neutral: 0
       `presence_penalty`    subtracted once if a token was sampled at all; neutral: 0
    3. `temperature`  divides the logits; 0 takes the best token and ends here; neutral: 1
    4. Filters, each applied to what the one before has kept; the best token is always kept, and of
       equally probable tokens the lower ids come first:
       `top_k`  keeps that many of the most probable tokens; neutral: 0
       `top_p`  keeps the shortest run of the most probable tokens whose share of the probability
                that `top_k` left reaches it; neutral: 1
       `min_p`  keeps the tokens at least this many times as probable as the best; neutral: 0
    5. One of the tokens kept is drawn, by its probability among them.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def penalised(self) -> bool:
        """Whether the tokens that a row has seen change the odds of its next."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
        )

    def overridden_by(self, options: object) -> Self:
        """Replace each parameter that `options` has as an attribute other than None."""
        given: dict[str, Any] = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(options, name, None)) is not None
        }
        return msgspec.structs.replace(self, **given)


GREEDY = TokenSampling(temperature=0.0)
"""The best token, always."""


class TokenBias(msgspec.Struct, array_like=True, frozen=True):
    """Numbers that are added to the logits of N tokens.

    ids     int32[N], each once
    values  float32[N]
    """

    ids: bytes = b""
    values: bytes = b""


class BarredTokens(msgspec.Struct, array_like=True, frozen=True):
    """Tokens (`ids` int32[N], each once) that cannot be sampled before `min_tokens` others."""

    min_tokens: int = 0
    ids: bytes = b""
