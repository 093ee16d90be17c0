"""What `BackupAndRestore` is made of: identity, state, files and their folder."""
