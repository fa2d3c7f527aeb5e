"""The steps of one worker."""
