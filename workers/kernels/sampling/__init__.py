"""Triton kernels that sample without a sort."""
