"""The stages of a model: steps are submitted to them, results polled from them."""
