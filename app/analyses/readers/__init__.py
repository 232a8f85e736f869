"""Readers: one format each, from text to a typed record. Each reads all of its input or says where not."""
