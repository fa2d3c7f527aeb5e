"""The workloads: their requests, and the models that they are for."""
