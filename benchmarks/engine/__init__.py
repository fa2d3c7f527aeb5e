"""The engine core's loop, over stages that compute nothing."""
