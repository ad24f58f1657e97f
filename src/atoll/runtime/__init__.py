"""Real training: sockets, threads, disks and processes around the machines of `core`."""
