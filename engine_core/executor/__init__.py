"""Submit and poll over the stages of a model."""
