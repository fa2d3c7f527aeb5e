"""A tokenizer for a generator whose weights are made up."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 32_768
BOS_ID, EOS_ID = 0, 1
_SPECIAL = ["<s>", "</s>"]
_NOT_TRAINED_ON = {"site-packages", "test", "tests"}


def byte_level_bpe() -> Tokenizer:
    """A byte-level BPE of exactly 32,768 entries, trained on the sources of Python's own library
    (some 13 MB, 2 s): the same wherever the same Python runs. It adds no special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(  # pyright: ignore[reportAttributeAccessIssue]
        add_prefix_space=False
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_python_sources(), trainer)
    # A library with few sources has too few merges.
    missing = VOCABULARY - tokenizer.get_vocab_size()
    unused = [AddedToken(f"<unused{index}>") for index in range(missing)]
    tokenizer.add_tokens(unused)  # pyright: ignore[reportUnknownMemberType]
    return tokenizer


def _python_sources() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted(library.rglob("*.py")):
        if not _NOT_TRAINED_ON & set(file.relative_to(library).parts):
            yield file.read_text("utf-8", "replace")
