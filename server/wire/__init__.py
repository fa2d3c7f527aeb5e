"""HTTP/1.x on one connection: uvicorn's protocol within bounds."""
