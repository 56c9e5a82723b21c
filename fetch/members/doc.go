// Package members says which nodes a cluster has, and which layout an epoch uses.
//
// A node holds a lease in the store that all nodes share anyway ([Shared]): a row that
// lapses unless it is renewed. There is no gossip, no consensus and no port beside. What a
// node last saw stays its view while the store is out of reach: peers that are gone show where
// bytes are asked of them, and the store stands in.
//
// Layouts are kept in the store by their names. The layout of an epoch of a plan is claimed
// once, by a transaction of the store, so that ranks which ask different nodes get one answer.
//
// What follows from a layout is the business of fetch/layout. How the store keeps rows, only the store
// knows: see fetch/store/cql.
package members
