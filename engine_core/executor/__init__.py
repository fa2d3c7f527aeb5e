"""Submits steps to the stages of a model, and takes their results."""
