"""Webhooks: signed events at other people's URLs, at least once, in order, with a log of every attempt."""
