"""Selection windows that operators upload: stored with their judgement."""
