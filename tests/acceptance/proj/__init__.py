"""An app as a user would write it, for the acceptance tests: real workers run it as processes."""
