"""Hugging Face's text-embeddings-inference (TEI) in place: its endpoints, shapes and errors."""
