// Package peer is the way from one node to another by which blobs are asked for:
// the messages, and the asking side, a [Link]. The answering side is part of the
// server in package flight, whose way of sending without a copy it shares.
//
// A link is one gRPC stream, on which asks go one way and answers the other, in
// whatever order they come. It is set up again when it breaks; what was under way
// fails then, and is read from the store.
package peer
