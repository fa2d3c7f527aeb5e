"""What a message costs between processes."""
