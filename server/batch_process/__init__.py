"""The batch process: answers the batches of the state folder, with the engines of the daemon."""
