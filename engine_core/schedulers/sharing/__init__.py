"""What requests share: blocks found by their tokens, and prompts that others compute."""
