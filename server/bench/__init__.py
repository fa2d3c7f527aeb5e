"""`penstock bench`: the headline workloads, beside goals, vLLM's figures and floors."""
