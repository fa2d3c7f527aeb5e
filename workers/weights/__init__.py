"""A checkpoint's weights, into a model."""
