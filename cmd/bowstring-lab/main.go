// Command bowstring-lab is what Bowstring is measured and tried out with: a store
// as if it were far away, streams that are timed, links between the processes of
// a cluster on one machine, clusters in virtual time, and policies of caches.
// Nothing of it is in the server.
package main

import "bowstring/cmd/bowstring/command"

// lab is the command line.
type lab struct {
	command.Globals

	Serve    serveCmd    `cmd:"" nosettings:"" help:"Serve a store as bowstring serve does, as if it were far away."`
	Stream   streamCmd   `cmd:"" nosettings:"" help:"Read epochs of a dataset, and say how fast and what the waiting was for."`
	Links    linksCmd    `cmd:"" nosettings:"" help:"Stand between the processes of a cluster on one machine, as links. Commands come on the standard input."`
	Policy   policyCmd   `cmd:"" nosettings:"" help:"Replay cache policies over mixes of jobs in virtual time, beside the best that any could do."`
	Objects  objectsCmd  `cmd:"" nosettings:"" help:"Serve S3 from memory, with faults, for experiments with readers of buckets."`
	Simulate simulateCmd `cmd:"" nosettings:"" help:"Run a cluster in virtual time: real engines on made-up links, disks, stores and trainers."`
}

// program is the laboratory, as package command runs it.
func program() command.Program {
	l := &lab{}
	return command.Program{
		Name: "bowstring-lab", About: "Experiments with Bowstring: what it does over links of chosen latency, and in virtual time.",
		Grammar: l, Globals: &l.Globals, Partial: true,
	}
}

func main() { program().Main() }
