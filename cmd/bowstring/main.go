// Command bowstring is the whole of Bowstring in one binary: the server, the
// imports, and a client for each thing the server can do. Package command has
// its commands.
package main

import "bowstring/cmd/bowstring/command"

func main() { command.Main() }
