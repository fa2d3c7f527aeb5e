"""Clients that mean harm, and an honest one beside them."""
