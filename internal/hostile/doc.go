// Package hostile sends a server what no client would: raw frames of HTTP/2,
// protobuf and Arrow IPC written by hand, with lengths, counts and claims that
// are wrong or ruinous, and connections and calls that say nothing or too much.
//
// It is a client of its own, with neither grpc nor the Arrow library in between.
// The tests of this package run its cases. It sends to loopback addresses only.
package hostile
