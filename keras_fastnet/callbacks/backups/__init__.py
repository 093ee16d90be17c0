"""What `BackupAndRestore` is made of.

- `identity.py` states which training a backup belongs to, and compares two of them.
- `training_state.py` reads the state of a training, and sets it.
- `backup_file.py` is the content of a backup's file.
- `backup_folder.py` writes files in the background and finds the newest intact one.
- `storage.py` reads and writes files on disks and in object stores.
"""
