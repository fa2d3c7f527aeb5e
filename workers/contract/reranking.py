"""How a causal model scores pairs, each in a prompt (no torch)."""

import re
from collections.abc import Mapping

import msgspec

QUERY, DOCUMENT, INSTRUCTION = "{query}", "{document}", "{instruction}"
_PLACES = re.compile("|".join(map(re.escape, (QUERY, DOCUMENT, INSTRUCTION))))


class RerankTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prompt of a pair, and for a generator the answer whose likelihood is its score.

    Each of the `pieces` is tokenized alone, without added special tokens (those that it spells are
    tokens), and the prompt is their concatenation. One piece ends with `{document}`: a document
    that is too long is cut at its end. `{query}` and `{instruction}` may be anywhere;
    `instruction` is the default of the latter. A generator's score is the logit of the token
    `positive`, less that of `negative` if there is one. A classifier has a head instead.
    """

    pieces: tuple[str, ...]
    positive: str | None = None
    negative: str | None = None
    instruction: str | None = None

    def fault(self) -> str | None:
        text = "".join(self.pieces)
        if [piece.count(DOCUMENT) for piece in self.pieces if DOCUMENT in piece] != [1]:
            return f"pieces hold {DOCUMENT} {text.count(DOCUMENT)} times; it is needed once"
        if not self.pieces[self.cut_piece].endswith(DOCUMENT):
            return f"a piece ends with {DOCUMENT}; what follows it is a piece of its own"
        if QUERY not in text:
            return f"pieces do not hold {QUERY}"
        if (INSTRUCTION in text) != (self.instruction is not None):
            return f"an instruction and {INSTRUCTION} in the pieces are given together"
        return None

    def filled(self, query: str, instruction: str | None) -> tuple[str, ...]:
        """The pieces with an empty document. Without an `instruction` they have the default."""
        given = self.instruction or "" if instruction is None else instruction
        values = {QUERY: query, INSTRUCTION: given, DOCUMENT: ""}
        # In one pass: a query that spells a placeholder is text.
        return tuple(_PLACES.sub(lambda found: values[found[0]], piece) for piece in self.pieces)

    @property
    def cut_piece(self) -> int:
        return next(i for i, piece in enumerate(self.pieces) if DOCUMENT in piece)

    @property
    def answers(self) -> tuple[str, ...]:
        """The texts of the tokens whose logits make a generator's score."""
        return tuple(text for text in (self.positive, self.negative) if text is not None)

    @property
    def takes_instruction(self) -> bool:
        """Whether a request may have an instruction of its own."""
        return self.instruction is not None


class RerankConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a causal model that reranks was declared and set up.

    `token_ids` are those of the template's positive and negative token, none for a classifier.
    Until the template is known they are those of the checkpoint's LogitScore module.
    `instruction` is the checkpoint's own default.
    """

    template: RerankTemplate | None = None
    token_ids: tuple[int, ...] = ()
    instruction: str | None = None

    @property
    def known_template(self) -> RerankTemplate:
        """The template. Raises ValueError for a model that is not set up."""
        if self.template is None:
            raise ValueError("a reranker without a template was not set up")
        return self.template


UNKNOWN_TEMPLATE = (
    "how it is given a query with a text is not known by its name; give its template as rerank in "
    "the configuration file: pieces and, if there is one, instruction"
)
"""Why a causal classifier scores no pairs."""

_QWEN3_TASK = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)

KNOWN_TEMPLATES: Mapping[str, RerankTemplate] = {
    # The model card of Qwen/Qwen3-Reranker-0.6B, its example for transformers.
    "Qwen3-Reranker": RerankTemplate(
        pieces=(
            f"<|im_start|>system\n{_QWEN3_TASK}<|im_end|>\n<|im_start|>user\n",
            "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        positive="yes",
        negative="no",
        instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
    # The model card of BAAI/bge-reranker-v2-gemma, its example for transformers, whose `prompt` is
    # the instruction.
    "bge-reranker-v2-gemma": RerankTemplate(
        pieces=("<bos>", "A: {query}", "\n", "B: {document}", "\n", "{instruction}"),
        positive="Yes",
        instruction="Given a query A and a passage B, determine whether the passage contains an "
        "answer to the query by providing a prediction of either 'Yes' or 'No'.",
    ),
}
"""By a part of a checkpoint's name."""


def template_of_name(name: str) -> RerankTemplate | None:
    """The template of a checkpoint whose hub id or folder is `name`, if it is known."""
    lowered = name.lower()
    return next((own for key, own in KNOWN_TEMPLATES.items() if key.lower() in lowered), None)
