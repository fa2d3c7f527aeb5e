"""Checkpoints and devices, and what follows from them."""
