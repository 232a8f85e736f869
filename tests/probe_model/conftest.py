"""Must stay importable without the service's dependencies: these tests also run in the vLLM environment."""

import os

# Tiny models on shared processors: torch's threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
