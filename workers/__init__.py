"""One pipeline stage of a model: the only package that imports torch."""
