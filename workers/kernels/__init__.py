"""Triton kernels, which only CUDA needs. Triton has no types, and takes a launch's options among a
kernel's arguments: hence the comments for pyright."""
