"""The endpoints of Cohere, in its own shapes; `server.api` has `/v1/rerank` and `/v2/rerank`."""
