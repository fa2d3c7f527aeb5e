"""What a checkpoint says of its tokenizer in the files beside tokenizer.json, as transformers'
AutoTokenizer reads them."""
