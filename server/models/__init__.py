"""What follows from checkpoints and devices."""
