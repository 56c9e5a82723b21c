// Package hostile sends requests to a server that no client library would send. They are
// raw frames of HTTP/2, protobuf and Arrow IPC, written by hand. Their lengths, counts
// and claims are wrong or ruinous. Other cases open connections and calls that are
// silent, or that send too much.
//
// The client has neither gRPC nor the Arrow library in between, because these would
// reject the requests. The tests of this package run its cases. It connects to loopback
// addresses only. Begin reading at [Cases].
package hostile
