"""The conformance kit: see ../README.md."""
