"""The forms in which a template takes messages, found by probing it."""
