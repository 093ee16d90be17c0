"""What `BackupAndRestore` is made of.

- `identity.py` states which training a backup belongs to, and compares two of them.
- `backup_writer.py` writes backups in the background: the content is that of
  `backup_file.py`, in the folder of `backup_folder.py`.
- The folder has `local_files.py` and `folder_lock.py`, or, in an object store,
  `remote_files.py` and `remote_lock.py`.
- `restoring.py` gives a training the state of a backup, with `callback_states.py`.
"""
