"""One API process and its application."""
