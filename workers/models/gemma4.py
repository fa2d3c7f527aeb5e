"""Gemma 4's text decoder, dense. `Gemma4Config` says what it has beside a `DecoderConfig`.

Between layers a token has beside its hidden state an input of each layer, if the model has such
(per-layer embeddings). They are made of its word and its embedding on the first stage, and travel
with the hidden state: later stages have no table of words.
"""

import re

import torch

from workers.contract.model_config import Gemma4Config, ModelConfig
from workers.layers.activations import ACTIVATIONS
from workers.layers.layer import Layer, Placement, Vector
from workers.layers.linear import Embedding, Linear
from workers.layers.norm import RMSNorm
from workers.models.base import family_config
from workers.models.decoder import DecoderForCausalLM, DecoderLayer, DecoderModel, rms_norms
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


class LayerInputs(Layer):
    """Makes the inputs of all L layers, P numbers each, of tokens and their embeddings. They are
    the mean of a row of a table and of a normalised product, times the root of 2."""

    def __init__(self, config: ModelConfig, family: Gemma4Config, placement: Placement) -> None:
        size, self._size = config.hidden_size, family.per_layer_size
        width, words = config.num_layers * self._size, family.per_layer_vocab
        name, scale = "model.embed_tokens_per_layer", self._size**0.5
        self._table = Embedding(name, words, width, placement, scale=scale)
        product = {"model.per_layer_model_projection": width}
        self._product = Linear(size, product, placement, bias=False)
        # The product is to be divided by the root of its inputs' number: a norm with an epsilon so
        # much larger is the same.
        norm, eps = "model.per_layer_projection_norm", family.norm_eps * size
        self._norm = RMSNorm(norm, self._size, eps, placement)

    def __call__(self, tokens: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """int64[T] and [T, hidden_size] -> [T, L * P]"""
        context = self._norm(self._product(embedded).view(-1, self._size))
        return context.view(len(tokens), -1).add_(self._table(tokens)).mul_(2**-0.5)


class LayerInput(Layer):
    """Adds to a layer's output what its input of a token lets through of it: a gate's product times
    the input, projected back and normalised."""

    def __init__(
        self, config: ModelConfig, family: Gemma4Config, layer: int, placement: Placement
    ) -> None:
        name, size, own = f"model.layers.{layer}", config.hidden_size, family.per_layer_size
        start = size + layer * own
        self._own, self._function = slice(start, start + own), ACTIVATIONS[family.hidden_act]
        gate, projection = {f"{name}.per_layer_input_gate": own}, f"{name}.per_layer_projection"
        self._gate = Linear(size, gate, placement, bias=False)
        self._projection = Linear(own, {projection: size}, placement, bias=False)
        self._norm = rms_norms(family, placement)(f"{name}.post_per_layer_input_norm", size)

    def add_to(self, hidden: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """`hidden` [T, hidden_size], which may be overwritten, and the input in `states`
        [T, state_size] -> [T, hidden_size]."""
        passed = self._function(self._gate(hidden)) * states[:, self._own]
        return self._norm.add_to(hidden, self._projection(passed))


class Gemma4Layer(DecoderLayer):
    """A decoder's layer whose output may have an input of each token added, and is multiplied by a
    number."""

    def __init__(self, config: ModelConfig, layer: int, placement: Placement) -> None:
        super().__init__(config, layer, placement)
        family = family_config(config, Gemma4Config)
        self._size, with_inputs = config.hidden_size, family.per_layer_size > 0
        self._input = LayerInput(config, family, layer, placement) if with_inputs else None
        self._scalar = Vector(f"model.layers.{layer}.layer_scalar", 1, placement)
        # Where values are keys, their heads are those behind the queries'.
        self._keys = config.num_heads if config.keys_are_values(layer) else None

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        qkv = super().qkv(self._hidden(hidden))
        return qkv if self._keys is None else torch.cat((qkv, qkv[:, self._keys :]), dim=1)

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        own = super().after_attention(self._hidden(hidden), attended)
        if self._input is None:
            return own.mul_(self._scalar.values)
        own = self._input.add_to(own, hidden)
        torch.mul(own, self._scalar.values, out=hidden[:, : self._size])
        return hidden

    def _hidden(self, states: torch.Tensor) -> torch.Tensor:
        """[T, state_size] -> [T, hidden_size], dense."""
        return states[:, : self._size].contiguous()


class Gemma4Model(DecoderModel):
    """One stage of the decoder without its LM head (see `DecoderModel`)."""

    layer_class = Gemma4Layer

    def _build(self, config: ModelConfig, placement: Placement) -> None:
        super()._build(config, placement)
        family = family_config(config, Gemma4Config)
        self._size, self._inputs = config.hidden_size, None
        if self.share.first and family.per_layer_size:
            self._inputs = LayerInputs(config, family, placement)
        self.unused = re.compile(rf"{self.unused.pattern}|{config.unread}")

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        words = super().embed(step)
        if self._inputs is None:
            return words
        return torch.cat((words, self._inputs(step.tokens, words)), dim=1)

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._final_norm is None:
            return hidden
        return self._final_norm(hidden[:, : self._size])


class Gemma4ForCausalLM(Gemma4Model, DecoderForCausalLM):
    """One stage of the decoder with its LM head."""
