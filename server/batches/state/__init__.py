"""The state that outlives the daemon: clients' files, and the batches that answer them."""
