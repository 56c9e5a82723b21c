"""The kinds of clients of a long run, a module each with a class `Client`."""
