"""What the project's makers run by hand."""
