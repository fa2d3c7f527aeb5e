"""From texts to token ids."""
