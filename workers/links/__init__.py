"""Links of a stage to its neighbours and to its engine core."""
