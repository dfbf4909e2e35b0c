"""The authorizer: which person a request of the gateway comes from, and what it may reach."""
