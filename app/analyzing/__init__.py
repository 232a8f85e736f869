"""Analyses over HTTP: a text that somebody has, and the verdict that it allows. Nothing is stored."""
