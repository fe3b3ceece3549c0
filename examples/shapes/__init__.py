"""Three well-known shapes, each a graph of one page: an agent loop, a saga with compensation, a quorum of reviewers."""
