"""The scheduler of models that only read: which rows are encoded together."""
