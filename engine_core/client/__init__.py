"""The client that a server process holds for one engine core."""
