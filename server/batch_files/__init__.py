"""Files of requests in OpenAI's batch format: a job reads one and writes another."""
