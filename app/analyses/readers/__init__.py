"""Readers: one format each, from text to a typed record. Each either understands all of its input or says where not."""
