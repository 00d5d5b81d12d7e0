"""From files to batches: reading, checking, splitting, references, neighbours and graphs."""
