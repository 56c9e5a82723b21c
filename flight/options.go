package flight

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"bowstring/fetch/admission"
	"bowstring/fetch/object"
	"bowstring/flight/audit"
	"bowstring/flight/auth"
	"bowstring/flight/policy"
	"bowstring/flight/shm"
	"bowstring/flight/usage"
	"bowstring/schema"
)

// Options tunes a Server. The zero value of each field stands for its default.
// A client that exceeds a limit gets RESOURCE_EXHAUSTED with the limit's name
// and value. The memory that streams hold ahead of their consumers is the
// engine's WindowBytes.
type Options struct {
	// MaxStreams is how many DoGet, DoPut and DoExchange calls may run at once.
	// Default 1,024.
	MaxStreams int
	// MaxStreamsPerPeer is how many of them one address may have. Default half of
	// MaxStreams, or 64 if that is more.
	MaxStreamsPerPeer int
	// MaxConnections is how many connections may be open at once, one more is
	// closed as it comes. Default 4,096.
	MaxConnections int
	// MaxConnectionsPerPeer is how many of them one address may have. Default
	// 1,024.
	MaxConnectionsPerPeer int
	// MaxCallsPerConnection is how many calls may run on one connection; clients
	// keep to it and wait. Default 512.
	MaxCallsPerConnection int
	// MaxRequestBytes bounds what asks for something: a descriptor's command or
	// path, a ticket, an action's body, ListFlights criteria, an upload's schema.
	// Default 2 MiB.
	MaxRequestBytes int
	// MaxMessageBytes bounds one message that comes in, so also a record batch
	// of DoPut. Decompressed, a batch may have twice as much. Default 256 MiB.
	MaxMessageBytes int
	// MaxBatchRows bounds the rows of a record batch that comes in. Default
	// 4,194,304.
	MaxBatchRows int
	// MaxEndpoints is how many ranks one GetFlightInfo may name. Default 65,536.
	MaxEndpoints int
	// ExchangeDepth is how many requests of one DoExchange are worked on at
	// once. Each holds up to a record batch. Default 4.
	ExchangeDepth int
	// RequestTimeout is how long a connection may take to begin, and a call to say
	// what it wants, completely. Default 10 s.
	RequestTimeout time.Duration
	// MessageTimeout is how long each piece of a message may take to arrive, once
	// it has begun (64 KiB, then fifteen times what there is), and how long a
	// client may take to accept an answer that is no stream's. Default 1 min.
	MessageTimeout time.Duration
	// EndpointTTL is the time from a GetFlightInfo to the expiration of its endpoints.
	// Default 24 h.
	EndpointTTL time.Duration
	// DrainTimeout is how long Shutdown lets calls run on. Default 30 s.
	DrainTimeout time.Duration
	// Keepalive is after how much silence a client is asked whether it is still
	// there; one that does not answer within 20 s is gone. Default 30 s.
	Keepalive time.Duration
	// Ledger counts the memory that what comes in takes (admission.Uploads). One
	// address may take three quarters of it. Default a ledger of its own, with
	// default limits.
	Ledger *admission.Ledger
	// Auth recognises callers and encrypts, the caller's to close after Shutdown.
	// Default none: anybody may call, on whatever account they say.
	Auth *auth.Authenticator
	// Sources says whether it can be read who may call and what callers may do; nil if that is not to be read.
	Sources *auth.Sources
	// NoReflection keeps the methods from being listed. With Auth that
	// authenticates, only callers that it knows may list them anyway, unless its
	// OpenReflection is set.
	NoReflection bool
	// Node is what the server runs on. Default a node that is in no cluster.
	Node Node
	// PlainTransport has the server lean on nothing that gRPC does not promise: each batch is copied once before it is
	// sent. Set by itself where the program has another release of gRPC than the one it was proven with.
	PlainTransport bool
	// Tracer draws the spans of calls; nil if nothing is traced.
	Tracer trace.Tracer
	// Observer gets durations; nil for none.
	Observer Observer
	// Rules are those that hold now: who may do what with which dataset. nil allows everything to everybody.
	// See [Server.EnforceRules].
	Rules *atomic.Pointer[policy.Rules]
	// Tenants are those that there are now: on whose account each caller is, and what it gets. nil has callers name
	// tenants as they like, which all get the same. See [Server.EnforceTenants].
	Tenants *atomic.Pointer[policy.Tenants]
	// Audit records which caller read, wrote and dropped which data; nil for none. It
	// stays the caller's to close, after Shutdown.
	Audit *audit.Log
	// Cluster says what this server is in its cluster; nil if other nodes may not read
	// by way of it.
	Cluster *Cluster
	// Shm shares memory with clients on this node; nil if there is none. It stays the
	// caller's to close, after Shutdown.
	Shm *shm.Server
	// Requests are those to buckets: what they cost, and how many may be made; nil if the store reads none.
	Requests *object.Requests
	// MayRead fails unless a tenant may read the buckets that contain samples of a
	// snapshot; nil: every tenant may. It is asked when a job is opened.
	MayRead func(ctx context.Context, tenant string, snap *schema.Snapshot) error
	// Usage is the book of what tenants have used; nil for none. It stays the caller's to
	// close, after Shutdown, and to have written: see [Server.CountUsage].
	Usage *usage.Book
	// Logger receives a line for each call. Default slog.Default().
	Logger *slog.Logger
}

// Node is what a server asks of the node that it runs on. Its methods are called by several goroutines at once, and do not
// block.
type Node interface {
	// SpillScale is what the size of the spill was decided to be last, and why, as it is put into JSON; nil if nothing
	// decides it.
	SpillScale() any
	// Members is what the node knows of its cluster, as it is put into JSON; nil if it is in none.
	Members() any
	// Others are the addresses of the other nodes of the cluster.
	Others() []string
}

// alone is a node that is in no cluster.
type alone struct{}

// SpillScale implements Node.
func (alone) SpillScale() any { return nil }

// Members implements Node.
func (alone) Members() any { return nil }

// Others implements Node.
func (alone) Others() []string { return nil }

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	for at, n := range map[*int]int{
		&o.MaxStreams: 1024, &o.MaxConnections: 4096, &o.MaxConnectionsPerPeer: 1024, &o.MaxCallsPerConnection: 512,
		&o.MaxRequestBytes: 2 << 20, &o.MaxMessageBytes: 256 << 20, &o.MaxBatchRows: 4 << 20, &o.MaxEndpoints: 65_536,
		&o.ExchangeDepth: 4,
	} {
		if *at == 0 {
			*at = n
		}
	}
	if o.MaxStreamsPerPeer == 0 {
		o.MaxStreamsPerPeer = max(o.MaxStreams/2, min(o.MaxStreams, 64))
	}
	for at, d := range map[*time.Duration]time.Duration{
		&o.RequestTimeout: 10 * time.Second, &o.MessageTimeout: time.Minute, &o.EndpointTTL: 24 * time.Hour,
		&o.DrainTimeout: 30 * time.Second, &o.Keepalive: 30 * time.Second,
	} {
		if *at == 0 {
			*at = d
		}
	}
	if o.Ledger == nil {
		var limits admission.Limits
		limits.EnsureDefaults()
		o.Ledger = admission.NewLedger(limits)
	}
	if o.Node == nil {
		o.Node = alone{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field whose value cannot be,
// after EnsureDefaults.
func (o *Options) Validate() error {
	for _, f := range []struct {
		name           string
		n, least, most int64
	}{
		{"MaxStreams", int64(o.MaxStreams), 1, 1 << 20},
		{"MaxStreamsPerPeer", int64(o.MaxStreamsPerPeer), 1, 1 << 20},
		{"MaxConnections", int64(o.MaxConnections), 1, 1 << 20},
		{"MaxConnectionsPerPeer", int64(o.MaxConnectionsPerPeer), 1, 1 << 20},
		{"MaxCallsPerConnection", int64(o.MaxCallsPerConnection), 1, 1 << 20},
		{"MaxRequestBytes", int64(o.MaxRequestBytes), 1, 64 << 20},
		{"MaxMessageBytes", int64(o.MaxMessageBytes), 1, 1 << 30},
		{"MaxBatchRows", int64(o.MaxBatchRows), 1, 1 << 30},
		{"MaxEndpoints", int64(o.MaxEndpoints), 1, 1 << 20},
		{"ExchangeDepth", int64(o.ExchangeDepth), 1, 1 << 10},
		{"RequestTimeout", int64(o.RequestTimeout), 1, 1 << 62},
		{"MessageTimeout", int64(o.MessageTimeout), 1, 1 << 62},
		{"EndpointTTL", int64(o.EndpointTTL), 1, 1 << 62},
		{"DrainTimeout", int64(o.DrainTimeout), 0, 1 << 62},
		{"Keepalive", int64(o.Keepalive), int64(time.Second), 1 << 62},
	} {
		if f.n < f.least || f.n > f.most {
			return &schema.FieldError{Field: f.name, Got: fmt.Sprint(f.n),
				Want: fmt.Sprintf("%d to %d", f.least, f.most)}
		}
	}
	return nil
}
