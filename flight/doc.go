// Package flight serves datasets over Arrow Flight: the RPCs, their limits, and the mapping of errors to gRPC codes. It
// holds no policy on data: what a request means is package schema's and fetch's business, how rows are stored is ingest's.
// docs/protocol.md describes what clients see.
//
// Rooms below it: wire (frames, connections, what comes in), shm (memory shared with clients), peer (what nodes say to each
// other), auth (who calls), policy (rules and tenants), catalog (what there is for a caller, the only way to data), upload
// (what comes in becomes rows), audit, usage.
//
// A call passes through call.go (drain, who calls, log, panics, limits on requests) to its handler. In order, each file
// leaning on those before it:
//
//   - options.go, errors.go: what a server is made of; what clients are told
//   - calls.go, audited.go: calls under way, what they count, may do and have recorded
//   - server.go, call.go: the server, and what each call passes through
//   - get.go, put.go, exchange.go, info.go, actions.go: a handler for each purpose
//   - explain.go, lineage.go, stats.go, usage.go, warm.go: actions that are a topic of their own
//   - peerread.go: connections of other nodes, and what they get
package flight
