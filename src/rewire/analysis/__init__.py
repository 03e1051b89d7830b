"""Read-only on a sparse network: what it costs and which of its units are used. Counted by topology, never by value."""
