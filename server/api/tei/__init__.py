"""Endpoints, shapes and errors of Hugging Face's text-embeddings-inference (TEI)."""
