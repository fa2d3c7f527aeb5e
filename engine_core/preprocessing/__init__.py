"""What an engine does with a job in threads before its rows are made: tokenizes, compiles."""
