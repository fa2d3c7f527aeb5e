"""The HTTP endpoints, one module a family."""
