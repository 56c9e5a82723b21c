//go:build cassandra && race

package cql

// atOnceBesideALoss is how many reads are made at once as a node is lost. The driver tells all that are under way on a
// connection by one error, to which each then writes how it stood: with several, the race detector finds that.
const atOnceBesideALoss = 1
