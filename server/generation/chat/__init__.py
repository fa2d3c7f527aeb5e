"""From a conversation to a prompt, and chat's own form of the answer."""
