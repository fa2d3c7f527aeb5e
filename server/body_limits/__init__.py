"""Turns of the event loop that bodies take to be decoded."""
