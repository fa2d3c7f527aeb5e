"""Bodies of requests and answers, in OpenAI's shapes. Optional fields accept null."""
