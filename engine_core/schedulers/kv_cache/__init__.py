"""The blocks of the KV cache: who holds them, what is in them, and how that is found."""
