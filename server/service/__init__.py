"""Shared by the handlers of one API process: models, admission, inputs."""
