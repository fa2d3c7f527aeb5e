"""Rows gathered into dense batches, which torch attends: what the sdpa backend is made of."""
