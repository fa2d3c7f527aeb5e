"""What clients store: files, and the batches that answer them."""
