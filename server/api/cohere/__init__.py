"""Cohere's endpoints, except its two paths of rerank, which `server.api.relevance` serves."""
