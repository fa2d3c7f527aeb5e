"""One line for each HTTP request, on standard output."""
