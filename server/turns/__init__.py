"""An assistant's turn: its format as data, and the parser that reads one from a stream of text."""
