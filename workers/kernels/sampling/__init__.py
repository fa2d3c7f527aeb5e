"""Triton kernels of sampling, without a sort."""
