"""From texts to vectors and scores."""
