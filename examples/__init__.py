"""Complete programs that use docket the way its users do."""
