"""Which part of a model each pipeline stage holds, and what its parts cost it."""

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from workers.contract.model_config import ModelConfig, ModelConfigError


class Share(msgspec.Struct, array_like=True, frozen=True, tag="share"):
    """Contents of one stage: the layers from `start` to before `stop`, at least one. The `first`
    stage also has the embedding, the `last` one the final norm and the LM head or classifier."""

    start: int
    stop: int
    first: bool
    last: bool

    @property
    def layers(self) -> range:
        return range(self.start, self.stop)


def shares_of(stage_layers: Sequence[int]) -> list[Share]:
    """The share of each stage, in order, where stage s holds `stage_layers[s]` layers."""
    last = len(stage_layers) - 1
    return [
        Share(stop - count, stop, first=stage == 0, last=stage == last)
        for stage, (count, stop) in enumerate(
            zip(stage_layers, accumulate(stage_layers), strict=True)
        )
    ]


def even_split(num_layers: int, num_stages: int, together: int = 1) -> tuple[int, ...]:
    """Layers of each stage where no stage's time is known. The numbers differ by at most one, but
    where the last stage has to hold more: the layers that stay `together`.

    Layers that do not divide evenly go to the middle stages first, then to the first stage, never
    to the last, with its LM head. Raises ModelConfigError if a stage would have no layer.
    """
    if num_stages > num_layers - together + 1:
        reason = f": the last {together} stay together" if together > 1 else ""
        raise ModelConfigError(
            f"{num_layers} layers cannot be split over {num_stages} pipeline stages{reason}"
        )
    each, left_over = divmod(num_layers, num_stages)
    if each < together and num_stages > 1:
        return (*even_split(num_layers - together, num_stages - 1), together)
    extra = set([*range(1, num_stages - 1), 0][:left_over])
    return tuple(each + (stage in extra) for stage in range(num_stages))


def even_layers(model: ModelConfig, num_stages: int) -> tuple[int, ...]:
    """The `even_split` of a model's layers. Raises ModelConfigError."""
    return even_split(model.num_layers, num_stages, model.layers_together)


class PartCosts(msgspec.Struct, array_like=True, frozen=True):
    """Costs of one part of a model on a stage.

    decode        seconds that it takes in a step of decode rows; 0 for an encoder
    prompts       seconds that it takes in a step of prompts, or of whole texts
    weight_bytes  bytes of its weights
    """

    decode: float
    prompts: float
    weight_bytes: int


class StageCosts(msgspec.Struct, array_like=True, frozen=True):
    """Costs of the parts of a model on one stage's device, measured before layers are divided.

    layer           one layer
    embedding       what the first stage computes besides its layers
    head            what the last stage does: final norm, logits, sampling or pooling, less what its
                    last layer saves
    kv_block_bytes  bytes of a block of KV cache in one plane; 0 for an encoder
    """

    layer: PartCosts
    embedding: PartCosts
    head: PartCosts
    kv_block_bytes: int
