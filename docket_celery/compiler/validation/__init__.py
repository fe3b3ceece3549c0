"""The rules for graphs, one module per family. Each yields diagnostics and never raises for what it finds."""
