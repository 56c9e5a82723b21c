// Package faults runs a store on three real nodes of Cassandra while they, the network between them and the store's
// own processes fail, and checks the store's guarantees against what happened.
//
// The parts:
//
//   - A history ([Event]): what each process requested of the store and what the store answered, in files that
//     survive the process.
//   - A checker ([Check]): reads a history and lists what is impossible if the store keeps its guarantees. It does
//     not depend on how the store works.
//   - A schedule ([NewSchedule]): which fault begins when and ends when, from a seed.
//   - Gates ([Gate]): proxies between nodes, and between clients and nodes, that cut, hold back, delay and lose data.
//   - The run itself, TestFaults, with the build tag cassandra: nodes, processes that import, drop, tag, collect and
//     read, and the code that applies the schedule to them.
//
// The run needs no kernel facility and no root: nodes know each other by addresses at which gates listen.
//
// The protocol's simulation is not here but in package protocol. It covers in a minute what a real cluster meets in
// days. This package checks that the simulation's assumptions hold for a real database.
package faults
