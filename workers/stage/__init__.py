"""One pipeline stage: its process, its memory, its steps."""
