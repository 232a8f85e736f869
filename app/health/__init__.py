"""Is the service alive, and can it do its work?"""
