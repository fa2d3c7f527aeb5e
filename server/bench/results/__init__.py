"""What a measurement gives: figures, what they are compared with, the machine that it ran on."""
