"""Structured output: compiled grammars, one mask a sampled token (llguidance)."""
