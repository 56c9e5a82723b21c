"""A run on a machine with a GPU: training at its bound, and fed by Bowstring; copies to the device; packed text."""
