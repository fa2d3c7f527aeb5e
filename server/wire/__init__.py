"""HTTP/1.x on one connection, below ASGI: uvicorn's protocol within bounds."""
