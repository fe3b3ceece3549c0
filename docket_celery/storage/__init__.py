"""Where runs are kept: the contracts, and the two stores that honour them."""
