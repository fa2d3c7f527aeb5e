"""Triton kernels of attention over a paged KV cache."""
