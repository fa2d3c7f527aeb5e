"""Between the socket and the handlers."""
