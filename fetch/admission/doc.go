// Package admission schedules requests, and bounds the memory and CPU time that all of them together take.
//
//   - [Ledger] is the one account of memory for requests. A reservation that does not fit waits, or fails with an
//     error that names the limit.
//   - [Work] bounds CPU-bound work: evaluations, decoding.
//   - [Queue] orders reads by tenant, job and stream: start-time fair queueing by bytes, with weights.
//   - [Paces] bounds how fast tenants are served.
//   - [Egress] bounds what a node sends to other nodes.
//   - [Terms] are a tenant's quotas.
//
// It knows nothing of blobs, plans, stores or transports, nor how tenants are identified, and starts no goroutine.
package admission
