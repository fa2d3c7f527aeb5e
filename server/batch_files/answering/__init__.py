"""Who answers the lines of a job: engines within reach, or a daemon that runs elsewhere."""
