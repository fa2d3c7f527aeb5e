"""The body and the answer of vLLM's `/pooling`."""
