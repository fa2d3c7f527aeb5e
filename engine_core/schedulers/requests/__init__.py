"""The rows of jobs for a causal model: what each holds, and which wait and run."""
