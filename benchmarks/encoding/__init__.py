"""Encoders beside other programs that run them."""
