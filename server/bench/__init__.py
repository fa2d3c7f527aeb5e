"""`penstock bench`: the headline workloads, beside what others reach and what we aim for."""
