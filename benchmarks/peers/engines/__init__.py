"""One module per engine; each is a script that runs in a process of its own."""
