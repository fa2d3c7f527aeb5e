"""What the handlers of one API process share: models, admission, metrics, inputs."""
