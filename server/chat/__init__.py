"""Chat: a model's own template, rendered in a process that may be killed."""
