"""What a person may ask of the daemon, by flags or in a file."""
