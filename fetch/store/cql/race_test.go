//go:build cassandra && race

package cql

// atOnceWithALoss is how many reads are in flight when a node is lost. The driver ends all calls of a connection
// with one error object, to which each call then writes: with several calls, the race detector finds that.
const atOnceWithALoss = 1
