"""Attention backends, one a file."""
