"""The error of everything that makes a grammar."""


class GrammarError(ValueError):
    """A grammar that cannot be compiled or followed; one line, which names a schema's keyword."""
