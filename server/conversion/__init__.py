"""Tokenizers that exist only in slow form become a tokenizer.json, once."""
