"""What `/metrics` shows: the API processes' own counts, and what the engines report."""
