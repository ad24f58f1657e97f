"""The whole protocol at scale: the production core in virtual time, on the capacity traces of a fleet."""
