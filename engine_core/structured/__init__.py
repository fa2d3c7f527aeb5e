"""Text that must match a grammar: compiled off the loop, one mask a sampled token (llguidance)."""
