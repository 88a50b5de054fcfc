# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""Makes the packages: a build backend (PEP 517) that needs only Python.

setuptools would do the same, and would have to be there: this builds on a
machine without a network and without anything installed.  As a program:
python3 build.py <directory> makes both the sdist and the wheel there.
"""

import base64
import hashlib
import io
import os
import re
import sys
import tarfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "idempotency_client"
EPOCH = 315532800                       # 1980: zip has nothing earlier


def _project():
    """What pyproject.toml says; Python 3.9 has nothing to read it with."""
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as f:
        text = f.read()
    return dict(re.findall(r'^([\w-]+) = "(.*)"$', text, re.M))


def _metadata(p):
    return (f"Metadata-Version: 2.1\nName: {p['name']}\n"
            f"Version: {p['version']}\nSummary: {p['description']}\n"
            f"License: {p['license']}\n"
            f"Requires-Python: {p['requires-python']}\n"
            "Classifier: Private :: Do Not Upload\n"
            "Description-Content-Type: text/markdown\n\n"
            + _read("README.md").decode()).encode()


def _read(name):
    with open(os.path.join(HERE, name), "rb") as f:
        return f.read()


def _modules():
    return sorted(f"{PACKAGE}/{name}"
                  for name in os.listdir(os.path.join(HERE, PACKAGE))
                  if name.endswith(".py"))


def _license():
    """Beside this file in an sdist, at the root of the tree otherwise."""
    for path in ("LICENSE", "../../LICENSE"):
        if os.path.exists(os.path.join(HERE, path)):
            return _read(path)
    raise FileNotFoundError("LICENSE")


def _base(p):
    return f"{p['name'].replace('-', '_')}-{p['version']}"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    p = _project()
    base = _base(p)
    info = f"{base}.dist-info"

    files = [(name, _read(name)) for name in _modules()]
    files += [
        (f"{info}/LICENSE", _license()),
        (f"{info}/METADATA", _metadata(p)),
        (f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: build.py\n"
                          b"Root-Is-Purelib: true\nTag: py3-none-any\n"),
    ]

    record = ""
    for name, data in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        record += f"{name},sha256={digest.rstrip(b'=').decode()},{len(data)}\n"
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))

    name = f"{base}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w",
                         zipfile.ZIP_DEFLATED) as z:
        for path, data in files:
            entry = zipfile.ZipInfo(path)       # of 1980: the same each time
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    return name


def build_sdist(sdist_directory, config_settings=None):
    p = _project()
    base = _base(p)
    files = [(name, _read(name)) for name in
             ["README.md", "build.py", "pyproject.toml", *_modules()]]
    files += [("LICENSE", _license()), ("PKG-INFO", _metadata(p))]

    name = f"{base}.tar.gz"
    with tarfile.open(os.path.join(sdist_directory, name), "w:gz",
                      format=tarfile.PAX_FORMAT) as t:
        for path, data in files:
            entry = tarfile.TarInfo(f"{base}/{path}")
            entry.size = len(data)
            entry.mtime = EPOCH
            t.addfile(entry, io.BytesIO(data))
    return name


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    print(build_sdist(sys.argv[1]))
    print(build_wheel(sys.argv[1]))
