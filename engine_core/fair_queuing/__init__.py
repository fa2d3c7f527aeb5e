"""API keys take turns, by their weights, wherever requests wait: in engines and before them."""
