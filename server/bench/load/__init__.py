"""The load over HTTP: a lean client, the requests of a case, the answers' tokens and times."""
