"""FaultSense: find the slow GPU or path of a Mixture-of-Experts serving replica from end-to-end latency."""

__version__ = "0.1.0"
