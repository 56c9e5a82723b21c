// Package faults runs a store on three real nodes of Cassandra while they, the
// network between them and the store's own processes fail, and judges what was
// promised by what happened.
//
// The parts:
//
//   - A history ([Event]): what each process has asked of the store and what it
//     was told, in files that survive the process.
//   - A checker ([Check]): reads a history and lists what cannot have happened
//     if the store keeps its promises. It knows nothing of how the store works.
//   - A schedule ([NewSchedule]): which fault begins when and ends when, from a seed.
//   - Gates ([Gate]): proxies between nodes, and between clients and nodes, that
//     cut, hold back, delay and lose what passes.
//   - The run itself, TestFaults, with the build tag cassandra: nodes, processes
//     that import, drop, tag, collect and read, and what applies the schedule to them.
//
// No tool of the kernel is needed, nor other rights than a user has: nodes are
// told of each other at addresses where gates stand.
//
// What is not here: the protocol's simulation, which is of package protocol, and
// meets in a minute what a real cluster meets in days. This package shows that what the
// simulation takes for granted is true of a real database.
package faults
