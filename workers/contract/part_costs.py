"""What the parts of a model cost a stage: by that its layers are divided (no torch)."""

import msgspec


class PartCosts(msgspec.Struct, array_like=True, frozen=True):
    """What one part of a model costs a stage.

    decode        seconds that it takes in a step of decode rows; 0 for an encoder
    prompts       seconds that it takes in a step of prompts, or of whole texts
    weight_bytes  bytes of its weights
    """

    decode: float
    prompts: float
    weight_bytes: int


class StageCosts(msgspec.Struct, array_like=True, frozen=True):
    """What the parts of a model cost on one stage's device, measured before the layers are divided;
    all times are 0 where that would have taken too long.

    layer           one layer
    embedding       what the first stage computes besides its layers
    head            what the last stage does: final norm, logits, sampling or pooling, less what its
                    last layer saves
    kv_block_bytes  bytes of a block of KV cache in one layer; 0 for an encoder
    """

    layer: PartCosts
    embedding: PartCosts
    head: PartCosts
    kv_block_bytes: int
