"""Loads the weights of a checkpoint into a model."""
