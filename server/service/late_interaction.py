"""Late interaction: texts as vectors of their tokens, and how well these fit (MaxSim)."""

import numpy as np
from msgspec.structs import replace

from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import Marks, Tokenization
from engine_core.tokenization.tokenizer import Tokenizer, TokenizerError
from workers.contract.model_config import LateInteractionConfig


class LateInteraction:
    """The tokens of a model's queries and documents beside their text's. Raises TokenizerError for
    a marker that is no token."""

    def __init__(
        self, config: LateInteractionConfig, tokenizer: Tokenizer, vocab_size: int
    ) -> None:
        self._config, self._tokenizer, self._vocab_size = config, tokenizer, vocab_size
        known = map(tokenizer.raw.token_to_id, config.skipped)
        self._skipped = np.array([token for token in known if token is not None], np.int32)
        self._document = Marks(self._id(config.document_marker))
        self._query = Marks(self._id(config.query_marker))
        if config.expands:
            filler, attended = self._id(config.filler) or 0, config.attends_expansion
            self._query = Marks(self._query.marker, filler, config.query_length, attended)

    def marks(self, *, query: bool) -> Marks:
        return self._query if query else self._document

    def query_cut(self, tokenization: Tokenization) -> Tokenization:
        """`tokenization`, or its cut to what a query keeps beside its marker."""
        most = self._config.query_length - (self._query.marker is not None)
        return replace(tokenization, truncate_to=min(tokenization.truncate_to or most, most))

    def kept(self, vectors: FloatArray, ids: bytes, *, query: bool) -> FloatArray:
        """Vectors of a text that count, float32[K, D]: a document's skipped tokens have none."""
        if query:
            return vectors
        return vectors[~np.isin(np.frombuffer(ids, np.int32), self._skipped)]

    def _id(self, token: str) -> int | None:
        """The id of a token, or None for an empty one."""
        found = self._tokenizer.raw.token_to_id(token) if token else None
        if token and (found is None or found >= self._vocab_size):
            raise TokenizerError(f"the model has no token {token!r}, which marks its texts")
        return found


def max_sim(query: FloatArray, document: FloatArray) -> np.float32:
    """The sum of each query vector's best product with one of a document's, 0 without any.

    [Q, D] and [K, D] (Khattab & Zaharia 2020, arXiv:2004.12832, 3.3).
    """
    return np.float32((query @ document.T).max(axis=1).sum() if len(document) else 0)
