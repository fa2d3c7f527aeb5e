"""The engine core of one model: schedules steps, drives the workers. No torch."""
