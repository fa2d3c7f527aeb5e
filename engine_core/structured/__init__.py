"""Structured output: grammars compiled off the loop, one mask a sampled token (llguidance)."""
