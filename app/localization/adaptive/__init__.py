"""Probes in which every rank sends to r others: what they cost, what they can see, and how they are cut."""
