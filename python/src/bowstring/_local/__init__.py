"""The servers that the package starts on this machine, and the program that they run. It imports no other group."""
