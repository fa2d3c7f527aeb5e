"""Reads what a checkpoint says of the vectors and weights of its texts' tokens.

Three forms: PyLate's (keys of `config_sentence_transformers.json`, Dense modules), that of
ColBERT's own code (`artifact.metadata`, a tensor `linear.weight`), and BGE-M3's
(`colbert_linear.pt` and `sparse_linear.pt`). All readers raise ModelConfigError.
"""

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from workers.contract.checkpoint.config_keys import MOST_WIDTH
from workers.contract.checkpoint.folder_files import find_file, optional
from workers.contract.checkpoint.sentence_transformers import (
    ModelFile,
    Module,
    read_vector_modules,
)
from workers.contract.config import Task
from workers.contract.model_config import (
    DenseActivation,
    DenseConfig,
    LateInteractionConfig,
    TokenOutput,
    VectorModule,
)

_PUNCTUATION = tuple(string.punctuation)
_Length = Annotated[int, Meta(ge=3)]


class _Artifact(msgspec.Struct):
    """`artifact.metadata`, with the defaults of ColBERT's own code."""

    dim: Annotated[int, Meta(ge=1, le=MOST_WIDTH)] = 128
    query_token_id: str = "[unused0]"  # noqa: S105
    doc_token_id: str = "[unused1]"  # noqa: S105
    query_maxlen: _Length = 32
    doc_maxlen: _Length | None = None
    attend_to_mask_tokens: bool = False
    mask_punctuation: bool = True


class _Tokens(msgspec.Struct):
    mask_token: str | dict[str, Any] | None = None


def read_late_interaction(
    folder: Path, file: ModelFile, *, own_code: bool
) -> LateInteractionConfig:
    """PyLate's settings of a checkpoint, whose `file` may lack any; or those of its `own_code`."""
    mask = (optional(folder, "tokenizer_config.json", _Tokens) or _Tokens()).mask_token
    filler = mask.get("content") if isinstance(mask, dict) else mask
    filler = filler if isinstance(filler, str) else "[MASK]"
    if own_code:
        artifact = _artifact(folder)
        return LateInteractionConfig(
            query_marker=artifact.query_token_id,
            document_marker=artifact.doc_token_id,
            query_length=artifact.query_maxlen,
            document_length=artifact.doc_maxlen or 180,
            filler=filler,
            attends_expansion=artifact.attend_to_mask_tokens,
            skipped=_PUNCTUATION if artifact.mask_punctuation else (),
        )
    skipped = file.skiplist_words
    return LateInteractionConfig(
        query_marker="[Q] " if file.query_prefix is None else file.query_prefix,
        document_marker="[D] " if file.document_prefix is None else file.document_prefix,
        query_length=file.query_length or 32,
        document_length=file.document_length or 180,
        filler=filler,
        expands=file.do_query_expansion is not False,
        attends_expansion=bool(file.attend_to_expansion_tokens),
        skipped=_PUNCTUATION if skipped is None else tuple(skipped),
    )


def read_token_modules(
    folder: Path, modules: Sequence[Module], task: Task, hidden_size: int
) -> dict[TokenOutput, tuple[VectorModule, ...]]:
    """The layers behind token states: of the model's modules, or of files beside an embedder."""
    if task == "embed_tokens":
        if not modules:
            return {"token_vectors": (_linear("", hidden_size, _artifact(folder).dim),)}
        return {"token_vectors": read_vector_modules(folder, modules, hidden_size, modules[0].kind)}
    if task != "embed":
        return {}
    files: dict[TokenOutput, DenseConfig] = {
        "token_vectors": _linear("colbert_linear.pt", hidden_size, hidden_size),
        "token_weights": _linear("sparse_linear.pt", hidden_size, 1, "ReLU"),
    }
    return {name: (own,) for name, own in files.items() if find_file(folder, own.path)}


def _artifact(folder: Path) -> _Artifact:
    return optional(folder, "artifact.metadata", _Artifact) or _Artifact()


def _linear(path: str, size: int, out: int, act: DenseActivation = "Identity") -> DenseConfig:
    """A layer in a file of its own, or without biases among the model's tensors."""
    return DenseConfig(
        path=path, in_features=size, out_features=out, bias=bool(path), activation=act
    )
