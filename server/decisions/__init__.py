"""Questions about an input, answered by the probabilities of labels where a reply begins."""
