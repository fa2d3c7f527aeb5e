"""`penstock inspect`: what a checkpoint is and needs, from its files alone."""
