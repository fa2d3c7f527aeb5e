"""The configuration of a model: its shape, and how inputs and outputs are treated (no torch)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta

from workers.contract.experts import ExpertsConfig
from workers.contract.quantization import Quantization
from workers.contract.reranking import RerankConfig

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
DenseActivation = Literal["Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid"]
TokenOutput = Literal["states", "token_vectors", "token_weights"]
"""Numbers of each token: its last hidden state; the vector of a late interaction, not normalised,
or a logit for each label; its lexical weight."""


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of all `modes` side by side, in their order. Without `include_prompt`, the tokens
    of a prompt before the text are not pooled."""

    modes: tuple[PoolingMode, ...] = ("mean",)
    include_prompt: bool = True


class DenseConfig(msgspec.Struct, frozen=True, kw_only=True, tag="dense"):
    """activation(x W^T + b). `path` is the folder of its weights in the checkpoint, the model's own
    if it is empty, or a pickle (`.pt`) of this layer alone."""

    path: str
    in_features: int
    out_features: int
    bias: bool = True
    activation: DenseActivation = "Tanh"


class LayerNormConfig(msgspec.Struct, frozen=True, kw_only=True, tag="layer_norm"):
    """A LayerNorm over `size` numbers. `path` is the folder of its weights in the checkpoint."""

    path: str
    size: int


class NormalizeConfig(msgspec.Struct, frozen=True, kw_only=True, tag="normalize"):
    """Scales vectors to length 1."""


VectorModule = DenseConfig | LayerNormConfig | NormalizeConfig
"""A module behind the pooling: from vectors to vectors."""


def vector_size(hidden_size: int, pooling: PoolingConfig, modules: Sequence[VectorModule]) -> int:
    """The numbers of a vector behind `modules`, from token states of `hidden_size` numbers."""
    size = hidden_size * len(pooling.modes)
    for module in modules:
        if isinstance(module, DenseConfig):
            size = module.out_features
    return size


class LateInteractionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How texts become token vectors for MaxSim (Khattab & Zaharia 2020, arXiv:2004.12832, 3.2).

    A marker, a token of the vocabulary, comes behind a text's first token. With it documents have
    at most `document_length` tokens; queries are cut to `query_length`, and with `expands` filled
    up to it by the token `filler`, to which none attends unless `attends_expansion`. Vectors of a
    document's `skipped` tokens are left out.
    """

    query_marker: str = ""
    document_marker: str = ""
    query_length: int = 32
    document_length: int = 180
    filler: str = "[MASK]"
    expands: bool = True
    attends_expansion: bool = False
    skipped: tuple[str, ...] = ()

    def longest_text(self, longest: int) -> int:
        """The most tokens of a text beside its marker, in a model that takes `longest`."""
        most = min(self.document_length, longest)
        return most - bool(self.document_marker)


_Positive = Annotated[float, Meta(gt=0)]


class LinearScaling(msgspec.Struct, frozen=True, kw_only=True, tag="linear"):
    """Every frequency is divided by `factor`."""

    factor: _Positive


class Llama3Scaling(msgspec.Struct, frozen=True, kw_only=True, tag="llama3"):
    """Llama 3.1's scaling by wavelength, relative to `original_max_position`."""

    factor: _Positive
    low_freq_factor: _Positive
    high_freq_factor: _Positive
    original_max_position: int


class YarnScaling(msgspec.Struct, frozen=True, kw_only=True, tag="yarn"):
    """YaRN (Peng et al. 2023, arXiv:2309.00071): by turns over `original_max_position` tokens.

    Dimensions with more than `beta_fast` turns are left alone, those with less than `beta_slow` are
    divided by `factor`. With `truncate` the two bounds are whole dimensions. Rotated dimensions are
    multiplied by `attention_factor`.
    """

    factor: _Positive
    original_max_position: int
    beta_fast: _Positive = 32.0
    beta_slow: _Positive = 1.0
    truncate: bool = True
    attention_factor: float


class LongScaling(msgspec.Struct, frozen=True, kw_only=True, tag="longrope"):
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): a divisor for each pair of dimensions.

    A model that is served for at most `original_max_position` tokens has the short divisors, any
    other the long ones. They hold for all its texts: cached keys cannot change. Rotated dimensions
    are multiplied by `attention_factor`.
    """

    short_factors: tuple[_Positive, ...]
    long_factors: tuple[_Positive, ...]
    original_max_position: int
    attention_factor: float

    def factors(self, length: int) -> tuple[float, ...]:
        """The factors of a model that is served for texts of at most `length` tokens."""
        return self.short_factors if length <= self.original_max_position else self.long_factors


class DynamicScaling(msgspec.Struct, frozen=True, kw_only=True, tag="dynamic"):
    """Dynamic NTK, served up to `original_max_position` tokens, where it changes nothing. Beyond
    them the frequencies depend on the longest of the texts computed together."""

    original_max_position: int


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongScaling | DynamicScaling


class QueryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """A query at position p is multiplied by 1 + beta log(1 + floor(p / period)), as in Llama 4.
    Softmax over many tokens would be too flat without it."""

    beta: float
    period: int


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding with base `theta`, of the first `fraction` of an attention head.
    Rotated queries may grow, too.

    With a `proportional` fraction, the pairs and frequencies are those of a whole head, and the
    first of them are rotated.
    """

    theta: Annotated[float, Meta(gt=1)] = 10_000.0
    fraction: float = 1.0
    proportional: bool = False
    scaling: RopeScaling | None = None
    query_growth: QueryGrowth | None = None

    def rotary_dim(self, head_dim: int) -> int:
        """Dimensions of a head that are rotated."""
        rotated = int(head_dim * self.fraction)
        return rotated // 2 * 2 if self.proportional else rotated

    def whole_dim(self, head_dim: int) -> int:
        """Dimensions of a head to which pairs and frequencies belong."""
        return head_dim if self.proportional else self.rotary_dim(head_dim)

    @property
    def attention_factor(self) -> float:
        match self.scaling:
            case YarnScaling(attention_factor=factor) | LongScaling(attention_factor=factor):
                return factor
            case _:
                return 1.0

    def limit(self, declared: int) -> int:
        """The most tokens of a text in a model that declares a length. YaRN's factor extends it;
        dynamic NTK ends at the original length."""
        match self.scaling:
            case YarnScaling() as yarn:
                return max(declared, int(yarn.original_max_position * yarn.factor))
            case DynamicScaling() as dynamic:
                return min(declared, dynamic.original_max_position)
            case _:
                return declared


class PositionBias(msgspec.Struct, frozen=True, kw_only=True, tag="learned"):
    """A learned number added to each score, by attention head and distance of the two tokens.

    Distances are in `num_buckets` buckets (Raffel et al. 2019, arXiv:1910.10683), those of
    `max_distance` tokens and more in one.
    """

    num_buckets: int
    max_distance: int


class LinearBias(msgspec.Struct, frozen=True, kw_only=True, tag="linear"):
    """ALiBi (Press et al. 2021, arXiv:2108.12409), for tokens on both sides: each attention head
    takes a slope of its own times the distance from each score."""


class DisentangledBias(msgspec.Struct, frozen=True, kw_only=True, tag="disentangled"):
    """Products of a query, and of a key, with vectors of their distance, added to each score (He
    et al. 2020, arXiv:2006.03654).

    Distances are in 2 * `span` buckets, behind and ahead. Up to span / 2 tokens each has its own,
    the others share those up to `max_distance` tokens. Without that number each has its own.
    """

    span: int
    max_distance: int | None = None


class AttentionKind(msgspec.Struct, frozen=True, kw_only=True):
    """Attention in one kind of layer.

    causal         a token sees itself and those before it; otherwise all of its text
    window         of those, a token sees the ones less than `window` tokens away; None for any
    scale          a score is the product of a query and a key times this
    softcap        a score then becomes softcap * tanh(score / softcap)
    position_bias  added to the scores
    rope           rotates queries and keys; None without rotary embedding
    sinks          each attention head has a score of its own beside those of the tokens, which
                   takes its share of the softmax and brings no value
    num_kv_heads, head_dim  where they are not the model's (see `ModelShape.heads`)
    """

    causal: bool
    window: int | None = None
    scale: float
    softcap: float | None = None
    position_bias: PositionBias | LinearBias | DisentangledBias | None = None
    rope: RopeConfig | None = None
    sinks: bool = False
    num_kv_heads: int | None = None
    head_dim: int | None = None

    def narrowed(self, window: int | None, max_position: int) -> Self:
        """The kind with a window, in a model that declares `max_position` positions. A window that
        holds every text is none."""
        longest = max_position if self.rope is None else self.rope.limit(max_position)
        holds_all = window is not None and window >= longest
        return msgspec.structs.replace(self, window=None if holds_all else window)


ActivationName = Literal["silu", "relu", "relu2", "tanh", "gelu", "gelu_new", "gelu_pytorch_tanh"]
"""As transformers calls an activation function."""


QKNormKind = Literal["head", "width", "rotated"]
"""What is normalised of queries and of keys: each attention head before it is rotated, all heads
together, or each head once it is rotated."""

FusedQKV = Literal["parts", "groups"]
"""Order of a fused tensor of queries, keys and values: all queries first, or by KV heads, each
behind its queries and before its values."""


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True, tag="decoder"):
    """Differences between decoders with RMSNorms (`workers/models/decoder.py`).

    input_norms        each block's input is normalised
    output_norms       each block's output is normalised, before it is added
    late_pooling       a classifier's first layer is applied to tokens, and then they are pooled
    value_norm         heads of values are normalised too, without a weight
    unit_offset_norms  checkpoints hold the norms' weights less 1
    gated              two products go into the feed-forward network, one of them a gate
    embedding_scale    what embeddings are multiplied by, rounded to the model's dtype
    normed_head        rows of the LM head are scaled to length 1
    logit_scale        what logits are multiplied by
    logit_softcap      a logit becomes logit_softcap * tanh(logit / logit_softcap)
    fused_qkv          checkpoints have queries, keys and values in one tensor
    fused_gate_up      and the gate and what it multiplies in another
    interleaved_dims   the first so many dimensions of a head are rotated by pairs (2i, 2i + 1)
    experts            in place of feed-forward networks; None if all are dense
    further_layers     behind the last in checkpoints: they predict further tokens, and are unused
    """

    hidden_act: ActivationName
    norm_eps: Annotated[float, Meta(ge=0)]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    normed_head: bool = False
    qk_norm: QKNormKind | None = None
    value_norm: bool = False
    input_norms: bool = True
    output_norms: bool = False
    unit_offset_norms: bool = False
    gated: bool = True
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    fused_qkv: FusedQKV | None = None
    fused_gate_up: bool = False
    interleaved_dims: int = 0
    late_pooling: bool = False
    experts: ExpertsConfig | None = None
    further_layers: int = 0


class LayerNormDecoderConfig(DecoderConfig, frozen=True, kw_only=True, tag="layer_norm_decoder"):
    """Differences between decoders with LayerNorms of each block's input
    (`workers/models/layer_norm_decoder.py`), beside those of `DecoderConfig` but norms.

    parallel           both blocks of a layer have the layer's input
    shared_norm        then with one norm for both
    learned_positions  a token's position has a row in a table, added to its embedding
    transposed         checkpoints hold the layers' weights by inputs, not by outputs
    """

    norm_bias: bool = True
    parallel: bool = False
    shared_norm: bool = False
    learned_positions: bool = False
    transposed: bool = False


class Gemma4Config(DecoderConfig, frozen=True, kw_only=True, tag="gemma4"):
    """Differences of Gemma 4 beside those of `DecoderConfig` (`workers/models/gemma4.py`).

    keys_as_values    layers whose values are their keys, as projected
    wide_layers       layers whose feed-forward networks are twice as wide
    per_layer_size    numbers of a token's input of each layer; 0 without such inputs
    per_layer_vocab   words of the table of these inputs
    """

    keys_as_values: tuple[int, ...] = ()
    wide_layers: tuple[int, ...] = ()
    per_layer_size: int = 0
    per_layer_vocab: int = 0


class EncoderConfig(msgspec.Struct, frozen=True, kw_only=True, tag="encoder"):
    """Differences between encoders that normalise each block's sum (`workers/models/encoder.py`).

    A text's token i has row `first_position` + i of the table of positions, if there are
    `positions`. All tokens have segment 0 if `type_vocab_size` is 1; there are no segments if it is
    0. `head_act` and `pooler_act` are the activations of the heads: a masked language model's and a
    classifier's. The layers' products have no biases without `bias`, a gate and what it multiplies
    never. Checkpoints with `fused_qkv` have queries, keys and values in one tensor, those with
    `fused_gate` a gate and what it multiplies, the gate first or last. Embeddings of
    `embedding_size` numbers are projected to the size of the layers; None where they have it. With
    `shared_layers` all layers are one, the first.
    """

    hidden_act: ActivationName
    head_act: ActivationName
    pooler_act: ActivationName = "tanh"
    norm_eps: Annotated[float, Meta(ge=0)]
    type_vocab_size: int
    positions: bool = True
    first_position: int = 0
    gated: bool = False
    bias: bool = True
    fused_qkv: bool = False
    fused_gate: Literal["first", "last"] | None = None
    embedding_size: int | None = None
    shared_layers: bool = False


class PreNormEncoderConfig(msgspec.Struct, frozen=True, kw_only=True, tag="pre_norm_encoder"):
    """Differences between encoders that normalise each block's input (`workers/models/encoder.py`).
    The layer before a classifier, or before a masked language model's decoder, is called head."""

    hidden_act: ActivationName
    head_act: ActivationName
    norm_eps: Annotated[float, Meta(ge=0)]
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    head_bias: bool
    decoder_bias: bool


FamilyConfig = (
    DecoderConfig | LayerNormDecoderConfig | Gemma4Config | EncoderConfig | PreNormEncoderConfig
)


_WRAPPER = "language_model"
_BESIDE = frozenset(
    """vision_tower vision_model visual multi_modal_projector vision_embedder embed_vision
    audio_tower embed_audio""".split()
)
"""Parts of the names of a wrapper's tensors: of its language model's, and of those beside it."""


def inner_name(name: str) -> str | None:
    """A wrapper's name of a tensor -> that of its language model, None if it is not of that.

    "language_model.model.norm", "model.language_model.norm" and "model.norm" are the same.
    """
    parts = name.split(".")
    return (
        None
        if _BESIDE.intersection(parts)
        else ".".join(part for part in parts if part != _WRAPPER)
    )


def wrapper_names(name: str) -> tuple[str, ...]:
    """The names that a wrapper may have for a tensor of its language model (see `inner_name`)."""
    first, dot, rest = name.partition(".")
    return name, f"{_WRAPPER}.{name}", f"{first}.{_WRAPPER}{dot}{rest}"


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in elements. `max_position` is the number of positions."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int


class Heads(NamedTuple):
    """Numbers of a layer's heads, and their size."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class ModelShape(Sizes, frozen=True, kw_only=True):
    """Layer i has the kind of attention `attention[layer_kinds[i]]`. All kinds are causal, or none
    is. It attends to the keys and values of layer `kv_layers[i]`, an earlier one of its kind or
    itself; with none given, to its own. With `tie_word_embeddings` the LM head is the embedding.
    `classifier_pooling` makes a classifier's input. Only the model's own class reads `family`. A
    `wrapped` model is the language model of a checkpoint of several models."""

    tie_word_embeddings: bool
    attention: tuple[AttentionKind, ...]
    layer_kinds: tuple[int, ...]
    kv_layers: tuple[int, ...] = ()
    classifier_pooling: PoolingMode = "cls"
    family: FamilyConfig
    wrapped: bool = False

    @property
    def has_kv_cache(self) -> bool:
        """Whether tokens see only those before them, so that keys and values can be kept."""
        return self.attention[0].causal

    @property
    def gated(self) -> bool:
        """Whether two products go into the feed-forward network, one of them a gate."""
        return isinstance(self.family, PreNormEncoderConfig) or self.family.gated

    def heads(self, kind: AttentionKind) -> Heads:
        """The heads of layers of a kind."""
        kv_heads, head_dim = kind.num_kv_heads, kind.head_dim
        return Heads(self.num_heads, kv_heads or self.num_kv_heads, head_dim or self.head_dim)

    def heads_of(self, layer: int) -> Heads:
        """The heads of a layer. One that attends to another's keys and values has its KV heads."""
        return self.heads(self.attention[self.layer_kinds[layer]])

    def kv_layer(self, layer: int) -> int:
        """The layer to whose keys and values a layer attends."""
        return self.kv_layers[layer] if self.kv_layers else layer

    def keys_are_values(self, layer: int) -> bool:
        """Whether a layer's values are its keys, as projected."""
        return isinstance(self.family, Gemma4Config) and layer in self.family.keys_as_values

    def inner_size(self, layer: int) -> int:
        """The width of a layer's feed-forward network."""
        wide = isinstance(self.family, Gemma4Config) and layer in self.family.wide_layers
        return self.intermediate_size * (2 if wide else 1)

    @property
    def per_layer_size(self) -> int:
        """Numbers of a token's input of each layer, 0 without such inputs."""
        return self.family.per_layer_size if isinstance(self.family, Gemma4Config) else 0

    @property
    def state_size(self) -> int:
        """Numbers of a token between layers: its hidden state, then its inputs of all layers."""
        return self.hidden_size + self.num_layers * self.per_layer_size

    @property
    def layers_together(self) -> int:
        """Number of the last layers that one stage has to hold. Those are all since the first one
        to whose keys and values another attends, or only the last."""
        shared = [own for layer, own in enumerate(self.kv_layers) if own != layer]
        return self.num_layers - min([self.num_layers - 1, *shared])

    @property
    def unread(self) -> str:
        """A regular expression of keys' and values' canonical names that checkpoints may have of
        layers which attend to another's, and nobody reads."""
        sharing = "|".join(str(layer) for layer, own in enumerate(self.kv_layers) if own != layer)
        return rf"model\.layers\.({sharing})\.self_attn\.[kv]_(proj|norm)\..*"

    def attention_numbers(self, layer: int) -> int:
        """Numbers in the matrices of a layer's attention."""
        heads, kv_heads, head_dim = self.heads_of(layer)
        own = kv_heads * (1 if self.keys_are_values(layer) else 2)
        own = own if self.kv_layer(layer) == layer else 0
        return self.hidden_size * (2 * heads + own) * head_dim

    def mlp_numbers(self, layer: int, *, active: bool = False) -> int:
        """Numbers in the matrices of a layer's feed-forward network: of its experts all, or those
        that a token has."""
        own, products = self.experts, 3 if self.gated else 2
        if own is None or layer in own.dense_layers:
            return products * self.hidden_size * self.inner_size(layer)
        beside = self.hidden_size * (products * own.shared_size + own.count + own.shared_gate)
        return beside + self.expert_numbers(layer) * (own.active if active else own.count)

    def expert_numbers(self, layer: int) -> int:
        """Numbers in the matrices of one expert of a layer: gate, up and down."""
        own = self.experts
        return 0 if own is None or layer in own.dense_layers else 3 * self.hidden_size * own.size

    def numbers_of(self, layer: int, *, active: bool = False) -> int:
        """Numbers in the matrices of a layer, of all its experts or of a token's."""
        inputs = 2 * self.hidden_size * self.per_layer_size
        return self.attention_numbers(layer) + self.mlp_numbers(layer, active=active) + inputs

    @property
    def layer_numbers(self) -> int:
        """Numbers in the matrices of all layers by which one token is multiplied."""
        return sum(self.numbers_of(layer, active=True) for layer in range(self.num_layers))

    @property
    def input_numbers(self) -> int:
        """Numbers in the table and the matrix that make a token's inputs of all layers."""
        vocab = self.family.per_layer_vocab if isinstance(self.family, Gemma4Config) else 0
        return self.num_layers * self.per_layer_size * (vocab + self.hidden_size)

    @property
    def experts(self) -> ExpertsConfig | None:
        return self.family.experts if isinstance(self.family, DecoderConfig) else None

    @property
    def shared_layers(self) -> bool:
        """Whether all layers are one."""
        return isinstance(self.family, EncoderConfig) and self.family.shared_layers

    @property
    def embedding_size(self) -> int:
        """Numbers of a token's embedding, and of the state that an LM head gets."""
        own = self.family.embedding_size if isinstance(self.family, EncoderConfig) else None
        return own or self.hidden_size


Similarity = Literal["cosine", "dot", "euclidean", "manhattan", "MaxSim"]


class ModelConfigError(ValueError):
    """A checkpoint's configuration is missing, unreadable or not supported. One line says why."""


class UnsupportedKeyError(ModelConfigError):
    """A key of a JSON file that is not known, or whose value is not supported."""

    def __init__(self, file: Path, key: str, reason: str) -> None:
        super().__init__(f"{file}: {key} {reason}")
        self.file = file
        self.key = key


class SpladeConfig(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"strategy": "pooling_strategy", "activation": "activation_function"},
):
    """How a masked language model's logits become one sparse vector. In JSON as the configuration
    of sentence-transformers' SpladePooling.

    Each logit x becomes log(1 + relu(x)), or log(1 + log(1 + relu(x))) with `log1p_relu`. Then
    `strategy` reduces a text's tokens to one value for each word of the vocabulary.
    """

    strategy: Literal["max", "sum"] = "max"
    activation: Literal["relu", "log1p_relu"] = "relu"


class EmbeddingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Declarations of an embedder besides its pooling.

    `prompts` are texts put before inputs, by name (`config_sentence_transformers.json`);
    `default_prompt_name` is used if a request names none. A matryoshka model's vectors may be
    truncated to `matryoshka_dimensions`, ascending; without these to any size. Both keys stand in
    `config.json`, as vLLM reads them. `similarity` is how two vectors are compared.
    """

    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    similarity: Similarity = "cosine"


class ModelConfig(ModelShape, frozen=True, kw_only=True):
    """A model: its shape, and how inputs and outputs are treated. Lengths in tokens.

    Scores of a classifier: the sigmoid of each logit if `sigmoid_scores`; otherwise the softmax for
    several labels, the raw logit for one. With `lowercase`, texts are put into lower case before
    they are tokenized. `tokenizer_file` is where the tokenizer is, if not in `path`. `modules`
    follow an embedder's `pooling`, in order; `token_modules` make token vectors and weights of
    token states. If the last one normalises, the server does that: a
    request may leave it out. `reranking` is given for a causal model that scores pairs, and for a
    causal classifier whose template is known. With a `quantization` linear layers have weights in
    FP8.
    """

    path: str
    architecture: str
    max_model_len: int
    lowercase: bool = False
    checkpoint_dtype: str
    quantization: Quantization | None = None
    num_labels: int
    labels: tuple[str, ...] = ()
    sigmoid_scores: bool
    pooling: PoolingConfig = PoolingConfig()
    modules: tuple[VectorModule, ...] = ()
    token_modules: dict[TokenOutput, tuple[VectorModule, ...]] = {}
    late_interaction: LateInteractionConfig | None = None
    splade: SpladeConfig = SpladeConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    reranking: RerankConfig | None = None
    tokenizer_file: str | None = None

    @property
    def reads_pairs(self) -> bool:
        """Whether the model can be given a query with a text. An encoder's tokenizer joins them; a
        causal model needs a template."""
        return self.reranking is not None or not self.has_kv_cache

    @property
    def normalized(self) -> bool:
        """Whether an embedder's vectors have length 1 unless a request says otherwise."""
        return bool(self.modules) and isinstance(self.modules[-1], NormalizeConfig)

    @property
    def worker_modules(self) -> tuple[VectorModule, ...]:
        return self.modules[:-1] if self.normalized else self.modules

    @property
    def vector_size(self) -> int:
        return vector_size(self.hidden_size, self.pooling, self.modules)

    def token_size(self, output: TokenOutput) -> int:
        """How many numbers each token has."""
        if output == "token_vectors" and output not in self.token_modules:
            return self.num_labels
        return vector_size(self.hidden_size, PoolingConfig(), self.token_modules.get(output, ()))
