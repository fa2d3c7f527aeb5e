"""What the API process carries, and what a daemon does under overload; wrk is the client."""
