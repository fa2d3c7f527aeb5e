"""`penstock batch`."""
