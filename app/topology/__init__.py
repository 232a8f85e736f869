"""Topology: which GPU sits where. Versioned, never edited in place."""
