"""Objects that a request describes: found by words, and outlined by points and boxes."""
