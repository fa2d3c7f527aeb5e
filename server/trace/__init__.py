"""`penstock trace`: the steps of a running daemon as a picture of its pipeline."""
