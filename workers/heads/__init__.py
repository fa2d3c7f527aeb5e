"""The last stage's end: from hidden states to tokens, vectors or scores."""
