"""Whose a request is, by its API key."""
