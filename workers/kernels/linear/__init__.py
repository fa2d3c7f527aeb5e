"""Triton kernels of the layers: products, norms, embedding lookup."""
