"""The demo generator beside transformers' `generate`."""
