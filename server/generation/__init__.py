"""From a request for text to its choices."""
