"""Replicas: what is probed, how it is reached, and how fast it may be."""
