"""From logits to tokens and their log-probabilities; each row draws by one uniform number."""
