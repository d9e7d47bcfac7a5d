"""Take runs out of a store: as tables to analyse (`snapshot`), as files to move elsewhere and back (`jsonl`)."""
