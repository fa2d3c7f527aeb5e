"""What the daemon is told, by flags or in a file, resolved into one frozen configuration."""
