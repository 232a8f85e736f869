"""How a probe becomes HTTP requests to a replica's probe endpoints, and how the answers become measurements."""
