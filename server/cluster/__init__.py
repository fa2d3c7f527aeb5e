"""One model on several hosts: how its nodes meet, and how they learn that one is lost."""
