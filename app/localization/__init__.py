"""The pure core: which probe next, and what the answers mean. No I/O, no clock, no database, no HTTP."""
