"""OpenAI's Responses API, which stands on what chats are made of."""
