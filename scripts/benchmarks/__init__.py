"""One module a benchmark; each has a function that returns plain JSON types."""
