// Package flight serves datasets over Arrow Flight: the RPCs, their limits, and the mapping
// of errors to gRPC codes. Packages schema and fetch define what a request means, and package
// ingest how rows are stored. docs/protocol.md describes what clients see.
//
// Packages below it:
//
//   - wire: frames, connections, incoming messages
//   - shm: memory shared with clients on this machine
//   - peer: messages between nodes
//   - auth: authentication
//   - policy: rules and tenants
//   - catalog: the data that exists for a caller, and the only way to it
//   - upload: incoming streams become rows
//   - audit, usage: records of calls and of resources
//
// A call passes through call.go (drain, authentication, log, panics, limits on requests) to
// its handler. Each file depends on those before it:
//
//   - options.go, errors.go: the options of a server; the errors of clients
//   - calls.go, audited.go: running calls with their counters, rights and records
//   - server.go, call.go: the server, and the steps that all calls have in common
//   - get.go, put.go, exchange.go, info.go, actions.go: one handler for each purpose
//   - explain.go, lineage.go, stats.go, usage.go, warm.go: larger actions
//   - peerread.go: connections of other nodes, and their reads
package flight
