// Package cluster joins what a node of a cluster is made of: who the members are and what they own,
// the tier that they are to each other, and the server that answers them. The parts live
// elsewhere; none of them knows the others.
package cluster
