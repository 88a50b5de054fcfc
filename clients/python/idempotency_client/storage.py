# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""Where keys and successes are kept, as text under a name.

A storage has get(name), set(name, text), remove(name), keys(), and
add(name, text), which sets what is not there yet, in one step, and returns
what is there then.  All of them may be called by several threads.
"""

import os
import uuid


class MemoryStorage:
    def __init__(self):
        self._map = {}

    def get(self, name):
        return self._map.get(name)

    def set(self, name, text):
        self._map[name] = text

    def add(self, name, text):
        return self._map.setdefault(name, text)

    def remove(self, name):
        self._map.pop(name, None)

    def keys(self):
        return list(self._map)


class FileStorage:
    """One file for each operation, in the form that the client for node has.

    A file is there in full or not at all, and of several processes that begin
    the same operation one makes its file: the others get that one's key.
    sync=False leaves out the wait for the disk, so that only a crash of the
    machine can lose a key.
    """

    def __init__(self, directory, sync=True):
        self._directory = os.fspath(directory)
        self._sync = sync

    def get(self, name):
        try:
            with open(self._file(name), encoding="utf-8") as f:
                return f.read()
        except FileNotFoundError:
            return None

    def set(self, name, text):
        os.replace(self._written(name, text), self._file(name))
        self._settle()

    def add(self, name, text):
        while True:
            there = self.get(name)
            if there is not None:
                return there

            path = self._written(name, text)
            try:
                os.link(path, self._file(name))
                self._settle()
                return text
            except FileExistsError:
                pass
            finally:
                os.unlink(path)

    def remove(self, name):
        try:
            os.unlink(self._file(name))
        except FileNotFoundError:
            pass

    def keys(self):
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return [name for name in names if not name.startswith(".")]

    def _file(self, name):
        return os.path.join(self._directory, name)

    def _written(self, name, text):
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        path = self._file(f".{name}.{uuid.uuid4()}")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            if self._sync:
                os.fsync(f.fileno())
        return path

    def _settle(self):
        """That it has this name is on the disk, too."""
        if self._sync and hasattr(os, "O_DIRECTORY"):
            fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
