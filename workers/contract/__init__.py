"""What a worker accepts, emits and is configured with: all that others may import. No torch."""
