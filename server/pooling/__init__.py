"""vLLM's `/pooling`: several tasks at one path."""
