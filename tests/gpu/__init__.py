"""Tests of what only a GPU shows. Without one they are skipped."""
