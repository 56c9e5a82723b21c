// Package admission decides whose turn it is, and bounds what all requests
// together can make the process hold and compute.
//
//   - [Ledger] is the one account of memory that requests take. What does not
//     fit waits, or is refused by name.
//   - [Work] bounds what keeps processors busy for long: evaluations, decoding.
//   - [Queue] orders reads: tenant, then job, then stream, start-time fair
//     queueing by bytes with weights.
//   - [Paces] bounds how fast tenants are served.
//   - [Terms] are what a tenant gets of all that.
//
// It knows nothing of blobs, plans, stores or transports, nor who a tenant is, and
// starts no goroutine.
package admission
