"""The one-layer probe model: its vocabulary, manifest, builder, verifier and serve command.

Nothing here imports torch at import time: `build` and `verify` do so when they are called.
"""
