"""Pipelines of stages on paper: our scheduler over simulated stages, by measured step times."""
