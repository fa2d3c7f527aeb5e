"""Reads sentence-transformers' LogitScore: a causal model that scores pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from workers.contract.checkpoint.folder_files import decoded
from workers.contract.checkpoint.sentence_transformers_files import ModelFile, Module
from workers.contract.reranking import RerankConfig

LOGIT_SCORE = "LogitScore"
_TokenId = Annotated[int, Meta(ge=0)]


class _LogitScore(msgspec.Struct, forbid_unknown_fields=True):
    """The module's configuration."""

    true_token_id: _TokenId
    false_token_id: _TokenId | None = None
    module_input_name: Literal["causal_logits"] = "causal_logits"


def read_reranking(folder: Path, modules: Sequence[Module], file: ModelFile) -> RerankConfig:
    """What the checkpoint itself says of its scores, which may be nothing; the template is not
    among it. Its default prompt is its default instruction. Raises ModelConfigError."""
    instruction = file.default_prompt or None
    module = next((module for module in modules if module.kind == LOGIT_SCORE), None)
    if module is None:
        return RerankConfig(instruction=instruction)
    raw = decoded(folder, module.config_file, _LogitScore)
    ids = (raw.true_token_id, raw.false_token_id)
    own = tuple(token for token in ids if token is not None)
    return RerankConfig(token_ids=own, instruction=instruction)
