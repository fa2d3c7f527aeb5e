"""What the last stage makes of hidden states: tokens, vectors, scores."""
