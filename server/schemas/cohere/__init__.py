"""Bodies and answers of Cohere's endpoints."""
