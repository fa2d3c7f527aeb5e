"""Who runs next: one scheduler a workflow."""
