"""Parts of `BackupAndRestore`: identity, state, files and their folder."""
