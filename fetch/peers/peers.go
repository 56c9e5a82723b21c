// Package peers reads blobs from the caches of other nodes: the tier between the spill and the store.
//
// For each blob a [Directory] returns a [Route]: which nodes this node requests the blob from, and whether it caches
// the blob if that pays. The first owner reads the blob from the store, once for all nodes. A second owner, and in
// each other zone the node that caches for the zone, request it from the first owner and cache it too. All other
// nodes request it from near nodes and do not cache it. If a node leaves, the new owners request from it what it
// holds.
//
// Ownership is advice. An owner that is slow, full, gone, or has another view costs a bounded delay; then the node
// reads the store.
//
// A [Link] is the connection to one node; the caller supplies it. This package knows nothing of gRPC, leases or
// layouts.
package peers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// Ask is a request to another node for a blob.
type Ask struct {
	Ref schema.BlobRef
	// Snapshot and Position are of the sample that needs the blob. From them the owner knows when the blob is needed
	// again.
	Snapshot string
	Position int64
	Tenant   string // the tenant whose account pays
	// Forward says that the other node may request the blob from its first owner, if it caches for others: see
	// [Route]. If it has nothing to do with the blob, it returns ErrNotHeld unless it holds it.
	Forward bool
	// Held says that the other node must answer from its cache alone.
	Held bool
}

// Errors that another node returns.
var (
	// ErrNotHeld: the node was to answer from its cache, and does not hold the blob.
	ErrNotHeld = errors.New("it does not hold the blob")
	// ErrFull: the node has used up its limits for now.
	ErrFull = errors.New("it has no room for more")
)

// Link is the connection to one node. It is safe for concurrent use.
type Link interface {
	// Get requests a blob and waits for it until ctx ends. The caller releases the blob. An error says nothing about
	// the blob: the store may have it.
	Get(ctx context.Context, ask Ask) (schema.Blob, error)
	// SendProgress sends the other node the progress of all streams of this node. Streams that are not listed have
	// ended. It must not block, and keeps the list.
	SendProgress(list []Progress)
	// Up reports whether requests can be sent. It must not block.
	Up() bool
	// Heard is when the node last sent anything, including a heartbeat. It must not block.
	Heard() time.Time
	// Protocol is the protocol version, 0 while the link is not up. It must not block.
	Protocol() int
	// Secure reports whether the link authenticates the node and protects what it sends. Without that, only blobs
	// whose key is the hash of their content are requested. It does not change, and must not block.
	Secure() bool
	// Close cancels requests in flight and closes the link.
	Close() error
}

// BulkCanceler is a Link that can cancel all requests at once. Without it, each request has a context of its own, which
// costs as much as the rest of the request.
type BulkCanceler interface {
	Link
	// CancelAll makes all calls of Get in flight return an error. It must not block.
	CancelAll(cause error)
}

// Progress is how far a stream of this node is, so that other nodes know what it uses next.
type Progress struct {
	// ID identifies the stream on this node.
	ID uint64 `json:"id"`
	// Ticket is the stream's ticket, as JSON.
	Ticket json.RawMessage `json:"ticket,omitempty"`
	Tenant string          `json:"tenant,omitempty"` // the tenant whose account pays
	// EpochOffset counts the epochs since the ticket's first. Index is in the order of that epoch.
	EpochOffset int64 `json:"lap"`
	Index       int64 `json:"index"`
	// Shares is what the node takes of the budgets of buckets, as JSON. Its entry has no ID, because it belongs to no
	// stream.
	Shares json.RawMessage `json:"shares,omitempty"`
}

// Options configures a Tier. Directory, Dial and SnapshotName are needed.
type Options struct {
	Directory Directory
	// Dial returns the link to a node. It does not wait for a connection.
	Dial func(node string) (Link, error)
	// SnapshotName returns the name of a place's dataset.
	SnapshotName func(number uint32) string
	// Patience is how long a node with requests in flight may send nothing before the store is read instead, if its
	// answers do not usually take longer. If the node sends heartbeats, it may send no blob for ten times as long,
	// because it waits for the store too. Default 500 ms.
	Patience time.Duration
	// Retry is how often a silent node gets a single request, to find whether it answers again. Default 1 s.
	Retry time.Duration
	// FullPause is how long a node gets no requests after it returned ErrFull. Default 100 ms.
	FullPause time.Duration
	Logger    *slog.Logger // default slog.Default()
}

// EnsureDefaults sets fields that are zero to their defaults.
func (o *Options) EnsureDefaults() {
	if o.Patience == 0 {
		o.Patience = 500 * time.Millisecond
	}
	if o.Retry == 0 {
		o.Retry = time.Second
	}
	if o.FullPause == 0 {
		o.FullPause = 100 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first invalid field.
func (o *Options) Validate() error {
	switch {
	case o.Directory == nil || o.Dial == nil || o.SnapshotName == nil:
		return fmt.Errorf("%w: peers need a directory, a way to dial, and the names of snapshots", schema.ErrInvalid)
	case o.Patience < 0 || o.Retry < 0 || o.FullPause < 0:
		return fmt.Errorf("%w: Patience is %s, Retry %s and FullPause %s; want positive times", schema.ErrInvalid,
			o.Patience, o.Retry, o.FullPause)
	}
	return nil
}

// Tier is the read.Tier of the other nodes' caches. It is safe for concurrent use.
type Tier struct {
	opts  Options
	owner Owner // the directory, if it implements Owner

	nodes  atomic.Pointer[map[string]*node] // replaced, never changed
	plain  atomic.Bool                      // some links are not secure, so blobs without a hash cannot be trusted
	mu     sync.Mutex                       // held while nodes is replaced
	closed bool                             // guarded by mu
	left   map[string]NodeStats             // counters of closed links, by node; guarded by mu
}

// New returns a tier over the nodes that the directory names. The caller closes it, after the reader that uses it.
func New(opts Options) (*Tier, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	t := &Tier{opts: opts, left: map[string]NodeStats{}}
	t.owner, _ = opts.Directory.(Owner)
	t.nodes.Store(&map[string]*node{})
	return t, nil
}

// Name implements read.Tier.
func (*Tier) Name() string { return "peer" }

// Traits implements read.Tier. The number of reads in flight is adapted by measurement.
func (*Tier) Traits() read.Traits { return read.Traits{Remote: true, Checked: true} }

// MaxBlob is the size, in bytes, of the largest blob that is requested from another node.
const MaxBlob = 64 << 20

// Has implements read.Tier: it reports whether a node holds or owns the blob and can be asked now.
func (t *Tier) Has(ref schema.BlobRef) bool {
	r := t.route(ref)
	if len(r.Ask) == 0 || ref.Size > MaxBlob || ref.Unproven() { // without a checksum, the answer could not be verified
		return false
	}
	nodes := *t.nodes.Load()
	for _, name := range r.Ask {
		if n := nodes[name]; n == nil || n.usable() && n.vouches(ref) {
			return true // a node without a link yet counts as usable
		}
	}
	return false
}

// route returns how this node gets a blob. If links are not secure, each node reads blobs without a hash from the
// store, and caches them if that pays.
func (t *Tier) route(ref schema.BlobRef) Route {
	if t.plain.Load() && !ref.Hashed() {
		return Route{Keep: true}
	}
	return t.opts.Directory.Route(ref)
}

// errNoNode is returned if no node can be asked for a blob.
var errNoNode = fmt.Errorf("%w: no other node can be asked", schema.ErrUnavailable)

// Fetch implements read.Tier.
func (t *Tier) Fetch(cells []read.Cell, to read.Answers) {
	read.Each(cells, to, func(c *read.Cell) (a read.Answer) {
		a.Blob, a.Err = t.Get(c.Context, c.Ref, c.At)
		return a
	})
}

// Get reads a blob from another node.
func (t *Tier) Get(ctx context.Context, ref schema.BlobRef, at spill.Place) (schema.Blob, error) {
	r := t.route(ref)
	if forPeer, _ := ctx.Value(peerReadKey{}).(bool); forPeer && !r.Keep {
		return schema.Blob{}, errNoNode // the view has changed since the other node sent the request
	}
	n, err := t.choose(r, ref)
	if err != nil {
		return schema.Blob{}, err
	}
	ask := Ask{Ref: ref, Position: at.Position, Tenant: store.CallerFrom(ctx).Tenant, Forward: !r.Keep, Held: r.Held}
	if at.Dataset != 0 {
		ask.Snapshot = t.opts.SnapshotName(at.Dataset)
	}
	b, err := n.get(ctx, ask)
	if !ask.Forward || !errors.Is(err, ErrNotHeld) {
		return b, err
	}
	// The node does not consider itself an owner, nor a cache for others. Another node of the route may, or this node
	// reads the blob for the requester without forwarding.
	ask.Forward = false
	for _, name := range r.Ask {
		if name != n.name {
			if other, err := t.choose(Route{Ask: []string{name}}, ref); err == nil {
				return other.get(ctx, ask)
			}
		}
	}
	return n.get(ctx, ask)
}

// node returns a node, and makes a link to it if there is none.
func (t *Tier) node(name string) (*node, error) {
	if n := (*t.nodes.Load())[name]; n != nil {
		return n, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.nodes.Load()
	if n := old[name]; n != nil {
		return n, nil
	}
	if t.closed {
		return nil, read.ErrClosing()
	}
	link, err := t.opts.Dial(name)
	if err != nil {
		return nil, fmt.Errorf("%w: node %s: %w", schema.ErrUnavailable, name, err)
	}
	n := &node{name: name, link: link, opts: &t.opts, made: time.Now()}
	n.bulk, _ = link.(BulkCanceler)
	nodes := make(map[string]*node, len(old)+1)
	for k, v := range old {
		nodes[k] = v
	}
	nodes[name] = n
	t.knowLocked(nodes)
	return n, nil
}

// SetNodes sets the other nodes. Links to them are made before the first request, and links to all others are closed.
func (t *Tier) SetNodes(names []string) error {
	keep := make(map[string]bool, len(names))
	var errs []error
	for _, name := range names {
		keep[name] = true
		_, err := t.node(name)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, t.drop(func(name string) bool { return !keep[name] }))...)
}

// Nodes is the number of other nodes.
func (t *Tier) Nodes() int { return len(*t.nodes.Load()) }

// Close cancels what is in flight and closes all links. No read may use the tier any more.
func (t *Tier) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	return t.drop(func(string) bool { return true })
}

func (t *Tier) drop(gone func(name string) bool) error {
	t.mu.Lock()
	nodes, dropped := map[string]*node{}, []*node(nil)
	for name, n := range *t.nodes.Load() {
		if gone(name) {
			dropped = append(dropped, n)
			t.leftLocked(name, n.stats())
		} else {
			nodes[name] = n
		}
	}
	t.knowLocked(nodes)
	t.mu.Unlock()
	var errs []error
	for _, n := range dropped {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// knowLocked replaces the set of other nodes.
func (t *Tier) knowLocked(nodes map[string]*node) {
	plain := false
	for _, n := range nodes {
		plain = plain || !n.link.Secure()
	}
	t.nodes.Store(&nodes)
	if plain && !t.plain.Load() {
		t.opts.Logger.Info("each node reads blobs without a hash by itself: those of attached data and of a store in a " +
			"bucket; with --cluster-key-file on all nodes they read them from each other")
	}
	t.plain.Store(plain)
}

// mostLeft is how many nodes that have left are counted by name; later ones are counted together, as "".
const mostLeft = 4096

// leftLocked keeps the counters of a closed link.
func (t *Tier) leftLocked(name string, s NodeStats) {
	if _, known := t.left[name]; !known && len(t.left) >= mostLeft {
		name, s.Node = "", ""
	}
	t.left[name] = t.left[name].plus(s)
}

// SendProgress sends the progress of this node's streams to all nodes.
func (t *Tier) SendProgress(list []Progress) {
	for _, n := range *t.nodes.Load() {
		n.link.SendProgress(list)
	}
}

// NodeStats are the counters of the link to one node.
type NodeStats struct {
	Node     string `json:"node"`
	Up       bool   `json:"up"`     // requests can be sent
	Silent   bool   `json:"silent"` // it has not answered for long, or it sent wrong bytes
	Asked    int64  `json:"asked"`
	Answered int64  `json:"answered"` // blobs received
	Bytes    int64  `json:"bytes"`    // size of those blobs
	Refused  int64  `json:"refused"`  // failed requests; the store was read instead
	Wrong    int64  `json:"wrong"`    // of Refused: the bytes were wrong
	Full     int64  `json:"full"`     // of Refused: the node was at its limits
	Absent   int64  `json:"absent"`   // requests to a leaving node that did not hold the blob
	InFlight int    `json:"in_flight"`
	Typical  int64  `json:"typical_us"`         // recent maximum of answer times, falling slowly
	Protocol int    `json:"protocol,omitempty"` // protocol version; 0 without a connection
}

// Totals returns the counters of each node since the tier was made, by name, including nodes that have left and
// earlier links. Fields of the moment, such as Up, are not set.
func (t *Tier) Totals() map[string]NodeStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := maps.Clone(t.left)
	for name, n := range *t.nodes.Load() {
		all[name] = all[name].plus(n.stats())
	}
	return all
}

// plus adds the counters of another link to the same node.
func (s NodeStats) plus(o NodeStats) NodeStats {
	return NodeStats{
		Node: o.Node, Asked: s.Asked + o.Asked, Answered: s.Answered + o.Answered, Bytes: s.Bytes + o.Bytes,
		Refused: s.Refused + o.Refused, Wrong: s.Wrong + o.Wrong, Full: s.Full + o.Full, Absent: s.Absent + o.Absent,
	}
}

// Stats returns the counters of all current links, by name.
func (t *Tier) Stats() []NodeStats {
	nodes := *t.nodes.Load()
	list := make([]NodeStats, 0, len(nodes))
	for _, n := range nodes {
		list = append(list, n.stats())
	}
	slices.SortFunc(list, func(a, b NodeStats) int { return cmp.Compare(a.Node, b.Node) })
	return list
}

// Directory returns how a node gets blobs. It is safe for concurrent use.
type Directory interface {
	// Route returns how this node gets a blob. It must not block or allocate, because it is called for every blob
	// with a lock held. The result must not be changed, and stays valid.
	Route(ref schema.BlobRef) Route
}

// Owner is a Directory that reports, without a route, whether this node caches such blobs if that pays, or has no node
// to request them from. Prefetching calls it for all rows of a job.
type Owner interface {
	Owns(ref schema.BlobRef) bool
}

// Route says how a node gets blobs.
type Route struct {
	// Ask are the nodes to request from, nearest first; empty if this node reads from the store.
	Ask []string
	// Near is how many of them, from the first, are equally near. The one with the least in flight gets the request.
	Near int
	// Keep says that this node caches such blobs if that pays, as first or second owner or as the cache of its zone.
	// It may forward requests of other nodes.
	Keep bool
	// Spare says that a near node, which reads such blobs from the store, caches them too.
	Spare bool
	// Held says that the nodes of Ask must answer from their caches alone: they owned the blob and are leaving.
	Held bool
}

// forward reports whether a node with this route may request a blob from another node on behalf of a requester. The
// first owner forwards only to leaving nodes, and those do not forward. So no request goes in a circle, whatever the
// views.
func (r Route) forward(asked bool) bool { return r.Keep && len(r.Ask) > 0 && (r.Held || asked) }

// peerReadKey marks the context of a read on behalf of another node.
type peerReadKey struct{}

// WithPeerRead returns a context for a read on behalf of another node.
func WithPeerRead(ctx context.Context) context.Context {
	return context.WithValue(ctx, peerReadKey{}, true)
}

// Forward reports whether this node may forward another node's request for a blob. asked is the request's
// [Ask.Forward].
func (t *Tier) Forward(ref schema.BlobRef, asked bool) bool {
	return t.route(ref).forward(asked)
}

// NotOwner reports whether this node has nothing to do with a blob. A requester with another view may send it such a
// request, for some seconds after a job begins.
func (t *Tier) NotOwner(ref schema.BlobRef) bool {
	r := t.route(ref)
	return !r.Keep && len(r.Ask) > 0
}

// Owns reports whether this node caches a blob, or has no node to request it from.
func (t *Tier) Owns(ref schema.BlobRef) bool {
	if t.owner != nil && (ref.Hashed() || !t.plain.Load()) {
		return t.owner.Owns(ref)
	}
	r := t.route(ref)
	return r.Keep || len(r.Ask) == 0
}

// Spare reports whether a near node, which reads the blob from the store, caches it too.
func (t *Tier) Spare(ref schema.BlobRef) bool { return t.route(ref).Spare }

// choose returns a node of the route that can be asked for a blob: of the near ones, the one with the least in
// flight.
func (t *Tier) choose(r Route, ref schema.BlobRef) (*node, error) {
	var best *node
	var least int64
	for i, name := range r.Ask {
		if best != nil && i >= max(r.Near, 1) {
			break
		}
		n, err := t.node(name)
		if err != nil {
			return nil, err
		}
		if !n.usable() || !n.vouches(ref) {
			continue
		}
		if load := n.pending.Load(); best == nil || load < least {
			best, least = n, load
		}
	}
	if best == nil || !best.admit() {
		return nil, errNoNode
	}
	return best, nil
}

// patienceFactor is how many times the recent maximum of its answer times a node may send nothing.
const patienceFactor = 4

// stalledFactor is how many times Patience a node that sends heartbeats may send no blob. When a job begins on many
// nodes, all of them wait in one queue before the store, and an owner's first answer takes long. If its requests were
// cancelled then, it would get no requests for a while, and its blobs would be read twice: by the requesters and by
// it.
const stalledFactor = 10

// node is the link to one node, and its state. If a node with requests in flight sends nothing for too long it is
// silent. Its requests then fail, so that the store is read, and it gets single requests until it answers.
type node struct {
	name string
	link Link
	bulk BulkCanceler // the link, if it implements BulkCanceler
	opts *Options
	made time.Time

	silent atomic.Bool
	probed atomic.Int64 // when a silent node was last asked, by age

	fullUntil atomic.Int64 // when a full node may be asked again, by age
	pending   atomic.Int64 // requests in flight

	asked, answered, bytes, refused, wrong, full, absent atomic.Int64

	mu      sync.Mutex
	under   int               // requests in flight
	asks    map[*ask]struct{} // those requests, if the link is no BulkCanceler
	heard   time.Time         // when it last answered, or when the oldest request in flight began
	typical time.Duration     // recent maximum of answer times, falling slowly
	watch   *time.Timer       // runs while requests are in flight
	looked  time.Time         // when watch last fired, or was set
	late    bool              // watch fired late the last time
}

// ask is a request in flight.
type ask struct{ cancel context.CancelCauseFunc }

// age is a monotonic time in nanoseconds.
func (n *node) age() int64 { return int64(time.Since(n.made)) }

// usable reports whether the node may be asked. It takes no lock.
func (n *node) usable() bool {
	if full := n.fullUntil.Load(); full != 0 && n.age() < full {
		return false
	}
	return n.link.Up() && (!n.silent.Load() || n.age()-n.probed.Load() >= int64(n.opts.Retry))
}

// vouches reports whether this node's answer for a blob can be trusted: the blob's hash verifies it, or the link is
// secure.
func (n *node) vouches(ref schema.BlobRef) bool { return ref.Hashed() || n.link.Secure() }

// check verifies the bytes that a node has sent for a blob.
func check(ref schema.BlobRef, data []byte) error {
	if ref.Hashed() {
		return ref.CheckHash(data)
	}
	return ref.Check(data)
}

// admit reports whether the next request may be sent. A silent node gets one request per Retry.
func (n *node) admit() bool {
	if !n.link.Up() {
		return false
	}
	if !n.silent.Load() {
		return true
	}
	last, now := n.probed.Load(), n.age()
	return now-last >= int64(n.opts.Retry) && n.probed.CompareAndSwap(last, now)
}

// get requests a blob.
func (n *node) get(ctx context.Context, what Ask) (schema.Blob, error) {
	var a *ask
	if n.bulk == nil {
		own, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		ctx, a = own, &ask{cancel}
	}
	began := time.Now()
	n.begin(a, began)
	n.asked.Add(1)
	n.pending.Add(1)
	blob, err := n.link.Get(ctx, what)
	n.pending.Add(-1)
	if err == nil {
		// On this goroutine: the bytes are in the CPU cache, and no socket waits
		if err = check(what.Ref, blob.Bytes()); err != nil {
			blob.Release()
			n.distrust(err)
		}
	}
	n.end(a, began, err)
	switch {
	case errors.Is(err, ErrNotHeld):
		n.absent.Add(1)
		return schema.Blob{}, fmt.Errorf("%w: node %s: %w", schema.ErrUnavailable, n.name, err)
	case errors.Is(err, ErrFull):
		n.full.Add(1)
		n.fullUntil.Store(n.age() + int64(n.opts.FullPause))
	}
	if err != nil {
		n.refused.Add(1)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return schema.Blob{}, fmt.Errorf("node %s: %w", n.name, err)
	}
	n.answered.Add(1)
	n.bytes.Add(what.Ref.Size)
	return blob, nil
}

// distrust marks the node as silent because it has sent wrong bytes. It stays so until it sends right ones.
func (n *node) distrust(err error) {
	n.wrong.Add(1)
	n.probed.Store(n.age())
	if !n.silent.Swap(true) {
		n.opts.Logger.LogAttrs(context.Background(), slog.LevelWarn,
			"another node sends wrong bytes; the store is read instead",
			slog.String("node", n.name), slog.Any("error", err))
	}
}

func (n *node) begin(a *ask, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.under++; n.under == 1 {
		n.heard, n.looked = now, now
		if n.watch == nil {
			n.watch = time.AfterFunc(n.opts.Patience/4, n.checkSilence)
		} else {
			n.watch.Reset(n.opts.Patience / 4)
		}
	}
	if a == nil {
		return
	}
	if n.asks == nil {
		n.asks = map[*ask]struct{}{}
	}
	n.asks[a] = struct{}{}
}

func (n *node) end(a *ask, began time.Time, err error) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.asks, a)
	if n.under--; n.under == 0 {
		n.watch.Stop()
	}
	switch {
	case errors.Is(err, ErrNotHeld), errors.Is(err, ErrFull):
		n.heard = now // it has answered, though without a blob
		n.answersLocked()
		return
	case err != nil:
		return
	}
	n.heard = now
	if took := now.Sub(began); took > n.typical {
		n.typical = took
	} else {
		n.typical -= (n.typical - took) / 256
	}
	n.answersLocked()
}

// answersLocked marks the node as answering.
func (n *node) answersLocked() {
	if n.silent.Swap(false) {
		n.opts.Logger.LogAttrs(context.Background(), slog.LevelInfo, "another node answers again",
			slog.String("node", n.name))
	}
}

// checkSilence cancels the requests to a node that sends nothing. The timer watch calls it.
func (n *node) checkSilence() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.under == 0 {
		return
	}
	n.watch.Reset(n.opts.Patience / 4)
	now := time.Now()
	late := now.Sub(n.looked) > n.opts.Patience/2 && !n.late
	if n.looked, n.late = now, late; late {
		// This process was stalled, and answers that arrived in the meantime are not read yet. A second late call
		// counts, because on an overloaded machine all calls are late.
		return
	}
	quiet := now.Sub(n.heard)
	bound := max(n.opts.Patience, patienceFactor*n.typical)
	if time.Since(n.link.Heard()) < n.opts.Patience {
		bound = max(bound, stalledFactor*n.opts.Patience) // it waits in a queue before the store, as this node would
	}
	if quiet < bound {
		return
	}
	n.probed.Store(n.age())
	if !n.silent.Swap(true) {
		n.opts.Logger.LogAttrs(context.Background(), slog.LevelWarn,
			"another node was asked and brings nothing; the store is read instead",
			slog.String("node", n.name), slog.Duration("silent", quiet), slog.Int("asks", n.under))
	}
	n.typical /= 2 // otherwise an owner with a slow store would never answer in time
	n.cancelAllLocked(fmt.Errorf("it has brought nothing for %s", quiet.Round(time.Millisecond)))
}

// cancelAllLocked cancels all requests in flight.
func (n *node) cancelAllLocked(cause error) {
	if n.bulk != nil {
		n.bulk.CancelAll(cause)
		return
	}
	for a := range n.asks {
		a.cancel(cause)
	}
}

func (n *node) stats() NodeStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return NodeStats{
		Node: n.name, Up: n.link.Up(), Silent: n.silent.Load(), Asked: n.asked.Load(), Answered: n.answered.Load(),
		Bytes: n.bytes.Load(), Refused: n.refused.Load(), Wrong: n.wrong.Load(), Full: n.full.Load(),
		Absent: n.absent.Load(), InFlight: n.under,
		Typical: n.typical.Microseconds(), Protocol: n.link.Protocol(),
	}
}

func (n *node) close() error {
	n.mu.Lock()
	n.cancelAllLocked(fmt.Errorf("%w: the node has left", schema.ErrUnavailable))
	n.mu.Unlock()
	return n.link.Close()
}
