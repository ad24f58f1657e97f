"""Virtual time: the production machines on a simulated network, disk and clock."""
