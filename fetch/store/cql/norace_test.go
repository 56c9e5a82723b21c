//go:build cassandra && !race

package cql

// atOnceWithALoss is how many reads are made at once as a node is lost.
const atOnceWithALoss = 16
