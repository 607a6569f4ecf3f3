"""Model hosts: one file per inference engine, all with the interface of `protocol`."""
