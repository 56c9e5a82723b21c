// Command bowstring-lab has the tools with which Bowstring is measured and tried out.
// None of their code is in the server.
//
//   - serve serves a store as if it were far away.
//   - stream reads a dataset and measures where the time went.
//   - links are TCP proxies between the processes of a cluster on one machine.
//   - policy compares cache policies in virtual time.
//   - objects is an S3 server in memory, with faults.
//   - simulate runs a cluster in virtual time.
//
// Each command has a file of its own. Package command parses the command line and has the
// parts that serve shares with bowstring. The models are in internal/delay,
// internal/links, internal/simulate and internal/objecttest.
package main

import "bowstring/cmd/bowstring/command"

// lab is the command line, as package command's grammar. No command has settings, because
// a measurement must be described by its command line alone.
type lab struct {
	command.Globals

	Serve    serveCmd    `cmd:"" nosettings:"" help:"Serve a store as bowstring serve does, as if it were far away."`
	Stream   streamCmd   `cmd:"" nosettings:"" help:"Read epochs of a dataset, and say how fast and what the waiting was for."`
	Links    linksCmd    `cmd:"" nosettings:"" help:"Stand between the processes of a cluster on one machine, as links. Commands come on the standard input."`
	Policy   policyCmd   `cmd:"" nosettings:"" help:"Replay cache policies over mixes of jobs in virtual time, beside the best that any could do."`
	Objects  objectsCmd  `cmd:"" nosettings:"" help:"Serve S3 from memory, with faults, for experiments with readers of buckets."`
	Simulate simulateCmd `cmd:"" nosettings:"" help:"Run a cluster in virtual time: real engines on made-up links, disks, stores and trainers."`
}

// program returns the program that package command runs.
func program() command.Program {
	l := &lab{}
	return command.Program{
		Name: "bowstring-lab", About: "Experiments with Bowstring: what it does over links of chosen latency, and in virtual time.",
		Grammar: l, Globals: &l.Globals, Partial: true,
	}
}

func main() { program().Main() }
