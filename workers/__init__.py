"""Celery workers: thin tasks around the features' services. Nothing imports this package."""
