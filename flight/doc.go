// Package flight serves datasets over Arrow Flight: the RPCs, their limits,
// the mapping of errors to gRPC codes, and the encoder that sends record
// batches without joining or marshalling their blobs.
//
// It holds no policy on data: what a request means is package schema's and
// fetch's business, how rows are stored is ingest's. docs/protocol.md
// describes what clients see.
//
// A call passes through the interceptors in call.go (drain, who calls, log,
// panics, limits on requests, error codes) to its handler: handshake.go, info.go, doget.go, doput.go,
// doexchange.go, actions.go. Calls that run are listed in streams.go, for
// limits, statistics, cancellation and the drain. Package door recognises
// callers; sealed.go is how its TLS and the connection that gathers frames fit
// together.
package flight
