"""The persistence contract. Protocols whose docstrings are the specification; both stores pass one suite over them."""
