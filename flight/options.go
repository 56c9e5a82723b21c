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

// Options configures a Server. Each zero field has the default that its comment names. A
// client that exceeds a limit gets RESOURCE_EXHAUSTED with the limit's name and value. The
// engine's WindowBytes, and no field here, bounds the prefetched data of streams.
type Options struct {
	// MaxStreams is how many DoGet, DoPut and DoExchange calls may run at once.
	// Default 1,024.
	MaxStreams int
	// MaxStreamsPerPeer is how many of them one address may have. Default half of
	// MaxStreams, or 64 if that is more.
	MaxStreamsPerPeer int
	// MaxConnections is how many connections may be open at once. A further one is closed
	// when it arrives. Default 4,096.
	MaxConnections int
	// MaxConnectionsPerPeer is how many of them one address may have. Default
	// 1,024.
	MaxConnectionsPerPeer int
	// MaxCallsPerConnection is how many calls may run on one connection. Clients know it
	// and wait. Default 512.
	MaxCallsPerConnection int
	// MaxRequestBytes bounds each request: a descriptor's command or path, a ticket, an
	// action's body, ListFlights criteria, an upload's schema. Default 2 MiB.
	MaxRequestBytes int
	// MaxMessageBytes bounds one incoming message, and therefore a record batch of DoPut. A
	// decompressed batch may have twice as much. Default 256 MiB.
	MaxMessageBytes int
	// MaxBatchRows bounds the rows of an incoming record batch. Default 4,194,304.
	MaxBatchRows int
	// MaxEndpoints is how many ranks one GetFlightInfo may name. Default 65,536.
	MaxEndpoints int
	// ExchangeDepth is how many requests of one DoExchange are served at once. Each holds
	// up to a record batch. Default 4.
	ExchangeDepth int
	// RequestTimeout is how long a connection may take for its handshake, and a call for
	// its complete request. Default 10 s.
	RequestTimeout time.Duration
	// MessageTimeout is how long each piece of a message may take to arrive after the
	// message has begun. The first piece is 64 KiB, and each further one is fifteen times
	// the bytes so far. It is also how long a client may take to accept an answer that is
	// not a stream's. Default 1 min.
	MessageTimeout time.Duration
	// EndpointTTL is the time from a GetFlightInfo to the expiration of its endpoints.
	// Default 24 h.
	EndpointTTL time.Duration
	// DrainTimeout is how long Shutdown lets running calls continue. Default 30 s.
	DrainTimeout time.Duration
	// Keepalive is the silence after which the server pings a client. A client that does
	// not answer within 20 s is disconnected. Default 30 s.
	Keepalive time.Duration
	// Ledger accounts for the memory of incoming data (admission.Uploads). One address may
	// use three quarters of it. Default a ledger of its own, with default limits.
	Ledger *admission.Ledger
	// Auth authenticates callers and encrypts connections. The caller closes it after
	// Shutdown. Default none: every caller is accepted, with any tenant it names.
	Auth *auth.Authenticator
	// Sources reports whether the files with tokens and rules can be read; nil if there are
	// none.
	Sources *auth.Sources
	// NoReflection hides the list of methods. If Auth authenticates, only authenticated
	// callers may list them in any case, unless its OpenReflection is set.
	NoReflection bool
	// Node is the node that the server runs on. Default a node outside of a cluster.
	Node Node
	// PlainTransport makes the server rely only on what gRPC promises: each batch is copied
	// once before it is sent. The server sets it itself if the program has another release
	// of gRPC than the one that the faster transport was tested with.
	PlainTransport bool
	// Tracer creates the spans of calls; nil if nothing is traced.
	Tracer trace.Tracer
	// Observer gets durations; nil for none.
	Observer Observer
	// Rules are the current rules: the rights of callers on datasets. nil permits
	// everything to every caller. After a change call [Server.EnforceRules].
	Rules *atomic.Pointer[policy.Rules]
	// Tenants are the current tenants: the tenant of each caller, and its limits and
	// weight. If nil, callers name any tenant, and all tenants have the same weight. After
	// a change call [Server.EnforceTenants].
	Tenants *atomic.Pointer[policy.Tenants]
	// Audit records which caller has read, written and dropped which data; nil for none.
	// The caller closes it after Shutdown.
	Audit *audit.Log
	// Cluster is this server's place in its cluster; nil if other nodes may not read
	// through it.
	Cluster *Cluster
	// Shm shares memory with clients on this node; nil for none. The caller closes it after
	// Shutdown.
	Shm *shm.Server
	// Requests counts, limits and prices the requests to buckets; nil if the store has
	// none.
	Requests *object.Requests
	// MayRead returns an error if a tenant may not read the buckets that contain samples of
	// a snapshot. nil permits every tenant. The server calls it when it opens a job.
	MayRead func(ctx context.Context, tenant string, snap *schema.Snapshot) error
	// Usage is the book of tenants' usage; nil for none. The caller closes it after
	// Shutdown, and writes it regularly: see [Server.CountUsage].
	Usage *usage.Book
	// Logger receives a line for each call. Default slog.Default().
	Logger *slog.Logger
}

// Node is what a server needs to know about the node that it runs on. Several goroutines
// call its methods at once. They must not block.
type Node interface {
	// SpillScale returns the latest decision about the size of the spill and its reason,
	// ready for JSON; nil if nothing decides it.
	SpillScale() any
	// Members returns the node's view of its cluster, ready for JSON; nil outside of a
	// cluster.
	Members() any
	// Others returns the addresses of the other nodes of the cluster. The caller does not
	// change the slice.
	Others() []string
}

// alone is a node outside of a cluster.
type alone struct{}

// SpillScale implements Node.
func (alone) SpillScale() any { return nil }

// Members implements Node.
func (alone) Members() any { return nil }

// Others implements Node.
func (alone) Others() []string { return nil }

// EnsureDefaults sets each zero field to its default.
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

// Validate returns a schema.FieldError for the first field with an invalid value. It is
// called after EnsureDefaults.
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
