"""Prometheus metrics: of this process's requests, and of the whole service from PostgreSQL."""
