"""From logits to tokens: adjustments, draws by one uniform number a row, log-probabilities."""
