"""Encoders of a decoder's blocks, with attention in both directions, such as EuroBERT."""

import re

from workers.contract.model_config import DecoderConfig, ModelConfig, TokenOutput
from workers.layers.activations import ACTIVATIONS, Activation
from workers.layers.layer import Chain, Placement
from workers.layers.linear import Linear
from workers.models.base import family_config, on_this_stage
from workers.models.decoder import DecoderForCausalLM, DecoderModel


class BidirectionalModel(DecoderModel):
    """One stage of an encoder (see `StageModel`), whose states are pooled."""

    unused = re.compile(rf"{DecoderModel.unused.pattern}|(dense|classifier)\..*")


class BidirectionalForMaskedLM(DecoderForCausalLM):
    """A masked language model, whose logits SPLADE pools."""


class BidirectionalForSequenceClassification(DecoderModel):
    """An encoder whose pooled states are classified, such as a cross-encoder. With `late_pooling`
    these are behind the classifier's first layer, which is the encoder's last."""

    def _make_head(self, config: ModelConfig, placement: Placement) -> Activation:
        size, labels = config.hidden_size, {"classifier": config.num_labels}
        function = ACTIVATIONS["gelu"]
        dense = Linear(size, {"dense": size}, placement, bias=True, function=function)
        classifier = Linear(size, labels, placement, bias=True)
        if not family_config(config, DecoderConfig).late_pooling:
            return Chain(dense, classifier)
        self._final_norm = Chain(on_this_stage(self._final_norm), dense)
        return classifier


class BidirectionalForTokenClassification(DecoderModel):
    """An encoder whose every token is classified."""

    def _make_token_heads(
        self, config: ModelConfig, placement: Placement
    ) -> dict[TokenOutput, Activation]:
        labels = {"classifier": config.num_labels}
        return {"token_vectors": Linear(config.hidden_size, labels, placement, bias=True)}
