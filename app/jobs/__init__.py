"""Jobs: one localization each, from request to verdict."""
