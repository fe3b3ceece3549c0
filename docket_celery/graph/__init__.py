"""The authored document: plain, immutable values with no knowledge of how they run."""
