//go:build cassandra && !race

package cql

// atOnceBesideALoss is how many reads are made at once as a node is lost.
const atOnceBesideALoss = 16
