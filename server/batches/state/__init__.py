"""What outlives the daemon: the files that clients upload and the batches that answer them."""
