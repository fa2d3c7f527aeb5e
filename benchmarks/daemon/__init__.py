"""`penstock serve` as a whole: start-up and memory."""
