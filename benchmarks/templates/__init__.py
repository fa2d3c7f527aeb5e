"""Prompts of published chat templates beside those of transformers."""
