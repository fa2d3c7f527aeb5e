"""What a tokenizer does with a text before its model, and what follows from that."""
