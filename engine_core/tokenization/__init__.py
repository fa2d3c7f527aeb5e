"""From texts to token ids, off the loop."""
