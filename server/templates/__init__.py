"""A model's chat template, rendered in a process that may be killed."""
