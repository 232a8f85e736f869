"""What every feature shares: database session, problem details, paging, keys, secrets, broker."""
