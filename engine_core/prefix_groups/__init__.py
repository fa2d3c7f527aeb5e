"""Which prompts begin alike: each prefix that a group shares is computed once."""
