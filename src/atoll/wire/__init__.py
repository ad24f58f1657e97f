"""Frames and messages to bytes and back: versioned, bounded, and without any input or output."""
