"""The table of the families that are served, and of their architectures by name."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from workers.contract.checkpoint import (
    decoders,
    encoders,
    expert_decoders,
    gemma4,
    later_decoders,
    layer_norm_decoders,
    wrappers,
)
from workers.contract.checkpoint.encoders import Renames
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.config import AskedTask, Task
from workers.contract.model_config import ModelConfig, ModelConfigError, ModelShape

ReadShape = Callable[[ShapeKeys], ModelShape]
KnownCode = Mapping[str, Mapping[str, Any]]
_NO_CODE: KnownCode = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture of a family.

    name         the family's name, with which its architectures begin
    task         decides the workflow (`engine_core.workflows`)
    model_class  `module:class`, a `StageModel`; only workers import it
    read_shape   reads the family's keys of `config.json`
    base         the architecture without this one's head, for pooled states
    known_code   modules of checkpoints' own code (`auto_map`) that compute the same, if keys of
                 `config.json` have these values
    """

    name: str
    task: Task
    model_class: str
    read_shape: ReadShape
    renames: Renames
    base: str
    known_code: KnownCode

    def canonical_name(self, name: str) -> str:
        """A checkpoint's own name for a tensor -> the name that the stage model uses."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name


def _architectures(
    name: str,
    read_shape: ReadShape,
    renames: Renames,
    *,
    tasks: Mapping[str, Task],
    module: str,
    base: str | None = None,
    known_code: KnownCode = _NO_CODE,
) -> dict[str, Family]:
    """Rows of the table: one for each head in `tasks`. "Model" is no head: its name is `base`, if
    not as is usual."""
    base = base or f"{name}Model"
    return {
        base if head == "Model" else name + head: Family(
            name=name,
            task=task,
            model_class=module + head,
            read_shape=read_shape,
            renames=renames,
            base=base,
            known_code=known_code,
        )
        for head, task in tasks.items()
    }


_DECODER_TASKS: Mapping[str, Task] = {
    "ForCausalLM": "generate",
    "ForSequenceClassification": "classify",
    "Model": "embed",
}
_ENCODER_TASKS: Mapping[str, Task] = {
    "Model": "embed",
    "ForMaskedLM": "embed_sparse",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "classify_tokens",
}
_DECODER_NAMES = ((r"^(embed_tokens|layers|norm)\.", r"model.\1."),)
"""A decoder that was saved without its LM head has names without "model."."""


def _decoder(
    name: str, read_shape: ReadShape, own_names: Renames = (), **own: Any
) -> dict[str, Family]:
    """Rows of a decoder, whose checkpoints may have `own_names` for tensors."""
    module, renames = "workers.models.decoder:Decoder", (*own_names, *_DECODER_NAMES)
    own = {"tasks": _DECODER_TASKS, "module": module} | own
    return _architectures(name, read_shape, renames, **own)


_layer_norm_decoder = partial(_decoder, module="workers.models.layer_norm_decoder:LayerNormDecoder")
_gemma4 = partial(
    _decoder,
    tasks={"ForCausalLM": "generate", "Model": "embed"},
    module="workers.models.gemma4:Gemma4",
)
_encoder = partial(_architectures, tasks=_ENCODER_TASKS, module="workers.models.encoder:Encoder")


def _wrapper(
    name: str,
    read_shape: ReadShape,
    rows_of: Callable[[str, ReadShape], dict[str, Family]] = _decoder,
) -> dict[str, Family]:
    """A row for the language model beside a vision tower, which is served alone."""
    language_model = rows_of(name, read_shape)[f"{name}ForCausalLM"]
    own = f"{name}ForConditionalGeneration"
    return {own: replace(language_model, base=own)}


FAMILIES: Mapping[str, Family] = {
    **_decoder("Llama", decoders.read_llama),
    **_decoder(
        "LlamaBidirectional",
        decoders.read_bidirectional_llama,
        tasks={"Model": "embed"},
        known_code={"llama_bidirectional_model": {}},
    ),
    **_decoder(
        "LlamaEncoder",
        decoders.read_bidirectional_llama,
        tasks={"Model": "embed"},
        known_code={"modeling_llama_encoder": {}},
    ),
    **_decoder("Mistral", decoders.read_mistral),
    **_decoder(
        "Qwen2",
        decoders.read_qwen2,
        known_code={"modeling_qwen": {"is_causal": False}},  # gte-Qwen2's, and Stella's
    ),
    **_decoder("Qwen3", decoders.read_qwen3),
    **_decoder("Phi3", decoders.read_phi3),
    **_decoder("Gemma", decoders.read_gemma),
    **_decoder("Gemma2", decoders.read_gemma2),
    **_decoder("SmolLM3", later_decoders.read_smollm3),
    **_decoder("Granite", later_decoders.read_granite),
    **_decoder("SeedOss", later_decoders.read_seed_oss),
    **_decoder("Olmo2", later_decoders.read_olmo2),
    **_decoder("Olmo3", later_decoders.read_olmo3),
    **_decoder("Exaone4", later_decoders.read_exaone4),
    **_decoder("Glm", later_decoders.read_glm),
    **_decoder("Glm4", later_decoders.read_glm4, own_names=later_decoders.GLM4_NAMES),
    **_decoder("Ernie4_5", later_decoders.read_ernie),
    **_decoder("Ernie4_5_", later_decoders.read_ernie),  # an earlier name
    **_decoder(
        "HunYuanDenseV1", later_decoders.read_hunyuan, own_names=later_decoders.HUNYUAN_NAMES
    ),
    **_decoder("Arcee", later_decoders.read_arcee),
    **_decoder("MiMo", later_decoders.read_mimo, own_names=later_decoders.MIMO_NAMES),
    **_decoder("BaiChuan", later_decoders.read_baichuan, later_decoders.BAICHUAN_NAMES),
    **_decoder("Baichuan", later_decoders.read_baichuan2, later_decoders.BAICHUAN_NAMES),
    **_decoder("Helium", later_decoders.read_helium),
    **_decoder(
        "InternLM2",
        later_decoders.read_internlm2,
        own_names=later_decoders.INTERNLM2_NAMES,
        known_code={"modeling_internlm2": {}},
    ),
    **_layer_norm_decoder("Nemotron", layer_norm_decoders.read_nemotron),
    **_layer_norm_decoder("Cohere", layer_norm_decoders.read_cohere),
    **_layer_norm_decoder("Cohere2", layer_norm_decoders.read_cohere2),
    **_layer_norm_decoder(
        "Starcoder2", layer_norm_decoders.read_starcoder2, layer_norm_decoders.STARCODER2_NAMES
    ),
    **_layer_norm_decoder("Phi", layer_norm_decoders.read_phi, layer_norm_decoders.PHI_NAMES),
    **_layer_norm_decoder(
        "GPTNeoX", layer_norm_decoders.read_gpt_neox, layer_norm_decoders.GPT_NEOX_NAMES
    ),
    **{
        name.replace("ForCausalLM", "LMHeadModel"): family
        for name, family in _layer_norm_decoder(
            "GPT2", layer_norm_decoders.read_gpt2, layer_norm_decoders.GPT2_NAMES
        ).items()
    },
    **_decoder("Gemma3", decoders.read_gemma3, base="Gemma3TextModel"),
    **_decoder("Ministral3", decoders.read_ministral3),
    **_gemma4("Gemma4", gemma4.read_gemma4, base="Gemma4TextModel"),
    **_gemma4("Gemma4Unified", gemma4.read_gemma4_unified, base="Gemma4UnifiedTextModel"),
    **_wrapper("Gemma3", wrappers.read_gemma3_wrapper),
    **_wrapper("Gemma4", wrappers.read_gemma4_wrapper, _gemma4),
    **_wrapper("Gemma4Unified", wrappers.read_gemma4_unified_wrapper, _gemma4),
    **_wrapper("Mistral3", wrappers.read_mistral3),
    **_wrapper("Qwen2VL", wrappers.read_qwen2_vl),
    **_wrapper("Qwen2_5_VL", wrappers.read_qwen2_vl),
    **_wrapper("Qwen3VL", wrappers.read_qwen3_vl),
    **_wrapper("Qwen3VLMoe", wrappers.read_qwen3_vl_moe),
    **_decoder("Qwen2Moe", expert_decoders.read_qwen2_moe),
    **_decoder("Qwen3Moe", expert_decoders.read_qwen3_moe),
    **_decoder("Mixtral", expert_decoders.read_mixtral, expert_decoders.MIXTRAL_NAMES),
    **_decoder("Olmoe", expert_decoders.read_olmoe),
    **_layer_norm_decoder("Phimoe", expert_decoders.read_phimoe, expert_decoders.PHIMOE_NAMES),
    **_layer_norm_decoder("PhiMoE", expert_decoders.read_phimoe, expert_decoders.PHIMOE_NAMES),
    **_decoder("GraniteMoe", expert_decoders.read_granitemoe, expert_decoders.GRANITEMOE_NAMES),
    **_decoder(
        "GraniteMoeShared", expert_decoders.read_granitemoe, expert_decoders.GRANITEMOE_NAMES
    ),
    **_decoder("Glm4Moe", expert_decoders.read_glm4_moe, expert_decoders.GLM4_MOE_NAMES),
    **_decoder("Ernie4_5_Moe", expert_decoders.read_ernie_moe, expert_decoders.ERNIE_MOE_NAMES),
    **_decoder("MiniMaxM2", expert_decoders.read_minimax_m2, expert_decoders.MINIMAX_M2_NAMES),
    **_decoder("GptOss", expert_decoders.read_gpt_oss, expert_decoders.GPT_OSS_NAMES),
    **_encoder("Bert", encoders.read_bert, encoders.BERT_NAMES),
    # A BERT with a layer behind each token, as ColBERT's own code saves it.
    **_encoder(
        "HF_ColBERT",
        encoders.read_bert,
        encoders.BERT_NAMES,
        tasks={"Model": "embed_tokens"},
        base="HF_ColBERT",
    ),
    **_encoder("Roberta", encoders.read_roberta, encoders.ROBERTA_NAMES),
    **_encoder("XLMRoberta", encoders.read_roberta, encoders.ROBERTA_NAMES),
    **_encoder("Camembert", encoders.read_roberta, encoders.ROBERTA_NAMES),
    **_encoder("DistilBert", encoders.read_distilbert, encoders.DISTILBERT_NAMES),
    **_encoder(
        "ModernBert",
        encoders.read_modernbert,
        ((r"^model\.", ""),),
        module="workers.models.encoder:PreNormEncoder",
    ),
    **_encoder("MPNet", encoders.read_mpnet, encoders.MPNET_NAMES),
    **_encoder("Electra", encoders.read_electra, encoders.ELECTRA_NAMES),
    **_encoder("Albert", encoders.read_albert, encoders.ALBERT_NAMES),
    **_architectures(
        "EuroBert",
        decoders.read_eurobert,
        _DECODER_NAMES,
        tasks=_ENCODER_TASKS,
        module="workers.models.bidirectional:Bidirectional",
        known_code={"modeling_eurobert": {}},
    ),
    **_encoder("New", encoders.read_gte, encoders.GTE_NAMES, known_code={"modeling": {}}),
    # The same in the code of another publisher.
    **_encoder(
        "Gte",
        encoders.read_gte,
        encoders.GTE_NAMES,
        known_code={"modeling_hf_alibaba_nlp_gte": {}},
    ),
    **_encoder(
        "JinaBert", encoders.read_jina, encoders.JINA_NAMES, known_code={"modeling_bert": {}}
    ),
    **_encoder(
        "DebertaV2",
        encoders.read_deberta,
        encoders.DEBERTA_NAMES,
        module="workers.models.disentangled:Disentangled",
    ),
    **_encoder(
        "NomicBert",
        encoders.read_nomicbert,
        encoders.NOMICBERT_NAMES,
        known_code={"modeling_hf_nomic_bert": {}},
    ),
}
"""By the names of architectures in `config.json`."""


def family_of(architecture: str, where: str = "") -> Family:
    """The row of `architecture`. Raises ModelConfigError, in a line that begins with `where`."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise ModelConfigError(
            f"{where}architecture {architecture!r} is not supported; docs/models.md lists those "
            "that are"
        )
    return family


class TaskError(ValueError):
    """A checkpoint cannot do what it is asked to do. One line says what it can."""


_TASKS: Mapping[AskedTask, tuple[Task, ...]] = {
    "generate": ("generate",),
    "embed": ("embed", "embed_tokens"),
    "rerank": ("classify", "rerank"),
}


def architecture_for(declared: str, asked: AskedTask) -> str:
    """The architecture for the task that is asked for: the declared one, or that without its head.
    Raises TaskError."""
    own = family_of(declared)
    by_task: dict[Task, str] = {family_of(own.base).task: own.base, own.task: declared}
    if own.task == "generate":
        by_task["rerank"] = declared  # by the logits of an answer's tokens
    architecture = next((by_task[task] for task in _TASKS[asked] if task in by_task), None)
    if architecture is None:
        able = [each for each, tasks in _TASKS.items() if by_task.keys() & set(tasks)]
        raise TaskError(f"{declared} cannot {asked}; it can {' or '.join(able)}")
    return architecture


def task_of(model: ModelConfig) -> Task:
    own = family_of(model.architecture).task
    if model.late_interaction is not None:
        return "embed_tokens"
    return "rerank" if own == "generate" and model.reranking is not None else own
