// Package peers reads blobs from the caches of other nodes: the tier between the
// spill and the store.
//
// Of each blob a [Directory] says how a node comes by it: whom it asks, and whether it
// keeps the blob if that pays. The first owner reads it from the store once, for all. A second
// owner, and in each other zone the node that acts for that zone, ask the first one and keep
// the blob too; all others ask those that are near, and keep nothing. A node that leaves
// is asked by the new owners for what it holds. Ownership is advice: an owner that is slow, full, of another opinion or
// gone costs a bounded delay, and then the store is read.
//
// A [Link] is the way to one node; how it is built is the business of whoever gives
// one. The package knows nothing of gRPC, leases or layouts.
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

// Ask is a blob that another node is asked for.
type Ask struct {
	Ref schema.BlobRef
	// Snapshot and Position say where it is wanted, so that the owner knows when
	// it will be wanted again.
	Snapshot string
	Position int64
	Tenant   string // on whose account
	// Onward says that the node asked may ask the blob's first owner, if it acts for others there: see [Route]. If it
	// has nothing to do with the blob, it is to say ErrNotHeld unless it holds it.
	Onward bool
	// Held says that it is to answer from its cache alone.
	Held bool
}

// Errors of a node that was asked.
var (
	// ErrNotHeld: it was asked for what it holds, and holds none.
	ErrNotHeld = errors.New("it does not hold the blob")
	// ErrFull: it has sent as much as it may for now.
	ErrFull = errors.New("it has no room for more")
)

// Link is the way to one node. It is safe for concurrent use.
type Link interface {
	// Get asks for a blob and waits for it, until ctx ends. The caller releases it.
	// Errors say nothing of the blob: the store may well have it.
	Get(ctx context.Context, ask Ask) (schema.Blob, error)
	// Tell tells the node what the streams of this one do now: all of them, those that
	// are not listed have ended. It must not block, and keeps the list.
	Tell(list []Progress)
	// Up reports whether the node can be asked. It must not block.
	Up() bool
	// Heard is when the node last said anything, if only that it is there. It must not block.
	Heard() time.Time
	// Protocol is what is spoken with it, 0 while it is not up. It must not block.
	Protocol() int
	// Secure reports whether what comes by the link is from the node and unchanged: the node proves who it is, and no
	// other program can make up what it sends. Without it only blobs are asked for whose key is the hash of their
	// content. It does not change. It must not block.
	Secure() bool
	// Close ends what is under way and gives the link up.
	Close() error
}

// Quitter is a Link that gives up all that was asked for at once. Without it each ask has a context of its own, which
// costs as much as all else that is done for one.
type Quitter interface {
	Link
	// GiveUp has all calls of Get that wait now return an error. It must not block.
	GiveUp(cause error)
}

// Progress is how far a stream of this node is, for others to know what it will use next.
type Progress struct {
	// ID is the stream's among those of this node.
	ID uint64 `json:"id"`
	// Ticket is what it serves, as JSON.
	Ticket json.RawMessage `json:"ticket,omitempty"`
	Tenant string          `json:"tenant,omitempty"` // on whose account
	// Lap counts the epochs since the ticket's first, and Index is in the order of that one.
	Lap   int64 `json:"lap"`
	Index int64 `json:"index"`
	// Shares is what the node allows itself of the budgets of buckets, as JSON, in an entry without an ID, which is of no
	// stream.
	Shares json.RawMessage `json:"shares,omitempty"`
}

// Options says what a Tier works with. Directory, Dial and SnapshotName are needed.
type Options struct {
	Directory Directory
	// Dial returns the link to a node. It does not wait until the node can be reached.
	Dial func(node string) (Link, error)
	// SnapshotName is the name of a place's dataset.
	SnapshotName func(number uint32) string
	// Patience is how long a node that was asked may say nothing before the store is
	// read instead, if it does not usually take longer. One that says that it is there may
	// bring nothing for ten times as long: it waits for the store, too. Default 500 ms.
	Patience time.Duration
	// Retry is how often a node that said nothing for so long is asked for one blob,
	// to see whether it does again. Default 1 s.
	Retry time.Duration
	// FullPause is how long a node is asked for nothing that has said that it is full. Default 100 ms.
	FullPause time.Duration
	Logger    *slog.Logger // default slog.Default()
}

// EnsureDefaults fills in the fields that are zero.
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

// Validate returns an error that names the first field without a sensible value.
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

// Tier is the tier that the other nodes are: see [read.Tier]. It is safe for
// concurrent use.
type Tier struct {
	opts Options
	mine Mine // the directory, if it is one

	nodes  atomic.Pointer[map[string]*node] // replaced, never changed
	plain  atomic.Bool                      // what some of them send of blobs without a hash cannot be relied on
	mu     sync.Mutex                       // held while nodes is replaced
	closed bool                             // guarded by mu
	left   map[string]NodeStats             // of links that are closed; guarded by mu
}

// New returns a tier of the nodes that the directory names. The caller closes it,
// after the reader that uses it.
func New(opts Options) (*Tier, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	t := &Tier{opts: opts, left: map[string]NodeStats{}}
	t.mine, _ = opts.Directory.(Mine)
	t.nodes.Store(&map[string]*node{})
	return t, nil
}

// Name implements read.Tier.
func (*Tier) Name() string { return "peer" }

// Traits implements read.Tier. How many reads may be under way is measured.
func (*Tier) Traits() read.Traits { return read.Traits{Remote: true, Checked: true} }

// MaxBlob is how long a blob may be, in bytes, that another node is asked for.
const MaxBlob = 64 << 20

// Has implements read.Tier: whether another node has the blob, or owns it, and can be asked.
func (t *Tier) Has(ref schema.BlobRef) bool {
	r := t.route(ref)
	if len(r.Ask) == 0 || ref.Size > MaxBlob || ref.Unproven() { // what another node sends is compared with the checksum
		return false
	}
	nodes := *t.nodes.Load()
	for _, name := range r.Ask {
		if n := nodes[name]; n == nil || n.usable() && n.vouches(ref) {
			return true // one that was never asked may be
		}
	}
	return false
}

// route is how this node comes by a blob. Where what others send cannot be relied on as the blob has no hash, each node
// reads it by itself, and keeps what pays.
func (t *Tier) route(ref schema.BlobRef) Route {
	if t.plain.Load() && !ref.Hashed() {
		return Route{Keep: true}
	}
	return t.opts.Directory.Route(ref)
}

// errNobody says that there is nobody to ask for a blob.
var errNobody = fmt.Errorf("%w: no other node can be asked", schema.ErrUnavailable)

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
		return schema.Blob{}, errNobody // the view has changed since it was asked for
	}
	n, err := t.choose(r, ref)
	if err != nil {
		return schema.Blob{}, err
	}
	ask := Ask{Ref: ref, Position: at.Position, Tenant: store.CallerFrom(ctx).Tenant, Onward: !r.Keep, Held: r.Held}
	if at.Dataset != 0 {
		ask.Snapshot = t.opts.SnapshotName(at.Dataset)
	}
	b, err := n.get(ctx, ask)
	if !ask.Onward || !errors.Is(err, ErrNotHeld) {
		return b, err
	}
	// It takes itself neither for an owner nor for one that acts for others. Another one does, or it reads the store
	// itself.
	ask.Onward = false
	for _, name := range r.Ask {
		if name != n.name {
			if other, err := t.choose(Route{Ask: []string{name}}, ref); err == nil {
				return other.get(ctx, ask)
			}
		}
	}
	return n.get(ctx, ask)
}

// node returns a node, which it makes a link to if there is none.
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
	n.quitter, _ = link.(Quitter)
	nodes := make(map[string]*node, len(old)+1)
	for k, v := range old {
		nodes[k] = v
	}
	nodes[name] = n
	t.knowLocked(nodes)
	return n, nil
}

// SetNodes says who the other nodes are: links to them are set up before anything is
// asked, and those to all others are closed.
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

// Nodes is how many other nodes there are.
func (t *Tier) Nodes() int { return len(*t.nodes.Load()) }

// Close ends what is under way, and closes all links. No read uses the tier then.
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

// knowLocked has these be the other nodes.
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

// mostLeft is how many nodes are counted by name that have left; those that leave later are counted as "".
const mostLeft = 4096

// leftLocked keeps the counters of a link that is given up.
func (t *Tier) leftLocked(name string, s NodeStats) {
	if _, known := t.left[name]; !known && len(t.left) >= mostLeft {
		name, s.Node = "", ""
	}
	t.left[name] = t.left[name].plus(s)
}

// Tell tells all nodes what the streams of this one do now.
func (t *Tier) Tell(list []Progress) {
	for _, n := range *t.nodes.Load() {
		n.link.Tell(list)
	}
}

// NodeStats are the counters of the way to one node.
type NodeStats struct {
	Node     string `json:"node"`
	Up       bool   `json:"up"`     // it can be asked
	Silent   bool   `json:"silent"` // it was asked, and has not answered for long, or not with what was asked for
	Asked    int64  `json:"asked"`
	Answered int64  `json:"answered"` // blobs that came
	Bytes    int64  `json:"bytes"`    // of them
	Refused  int64  `json:"refused"`  // asks that failed: the store was read instead
	Wrong    int64  `json:"wrong"`    // of those, which brought other bytes
	Full     int64  `json:"full"`     // of those, as it had sent as much as it may
	Absent   int64  `json:"absent"`   // asks for what a node that leaves holds, and did not
	InFlight int    `json:"in_flight"`
	Typical  int64  `json:"typical_us"`         // how long answers take: the longest of late, falling slowly
	Protocol int    `json:"protocol,omitempty"` // that both speak; 0 while there is no way to it
}

// Totals returns what was asked of each node since the tier was made, by name: also of those that have left, or
// have another address now. What is of the moment, such as Up, is not set.
func (t *Tier) Totals() map[string]NodeStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := maps.Clone(t.left)
	for name, n := range *t.nodes.Load() {
		all[name] = all[name].plus(n.stats())
	}
	return all
}

// plus adds the counters of another link to a node.
func (s NodeStats) plus(o NodeStats) NodeStats {
	return NodeStats{
		Node: o.Node, Asked: s.Asked + o.Asked, Answered: s.Answered + o.Answered, Bytes: s.Bytes + o.Bytes,
		Refused: s.Refused + o.Refused, Wrong: s.Wrong + o.Wrong, Full: s.Full + o.Full, Absent: s.Absent + o.Absent,
	}
}

// Stats returns the counters of the ways to all nodes, by name.
func (t *Tier) Stats() []NodeStats {
	nodes := *t.nodes.Load()
	list := make([]NodeStats, 0, len(nodes))
	for _, n := range nodes {
		list = append(list, n.stats())
	}
	slices.SortFunc(list, func(a, b NodeStats) int { return cmp.Compare(a.Node, b.Node) })
	return list
}

// Directory says how a node comes by blobs. It is safe for concurrent use.
type Directory interface {
	// Route says how this node comes by a blob. It must not block or allocate: it is asked
	// for every blob, with a lock held. What it returns is not to be changed, and may be used
	// for as long as one likes.
	Route(ref schema.BlobRef) Route
}

// Mine is a Directory that knows without a route whether this node keeps what pays of blobs like one, or asks nobody
// for it. Who looks ahead asks that of all rows of a job.
type Mine interface {
	Mine(ref schema.BlobRef) bool
}

// Route says how a node comes by blobs.
type Route struct {
	// Ask are the nodes to ask, the nearest first; none where this node reads from the store.
	Ask []string
	// Near is how many of them, from the first on, are as near as each other: the one that has least to
	// do is asked.
	Near int
	// Keep says that this node keeps what pays of such blobs: it owns them, first or second, or acts for its zone. It
	// asks others for what they have; whoever asks it, it may ask on for.
	Keep bool
	// Spare says that what it keeps of such blobs one near keeps too, who has it from the store.
	Spare bool
	// Held says that those to ask are to answer from their caches alone: they have owned the blob and are leaving.
	Held bool
}

// onward reports whether a node with this route may ask another one for a blob that it was asked for itself. Who is
// asked by a keeper asks nobody but those that are leaving, and they ask nobody: so no blob is asked for in a circle,
// whatever the views.
func (r Route) onward(asked bool) bool { return r.Keep && len(r.Ask) > 0 && (r.Held || asked) }

// peerReadKey marks the context of a read for another node.
type peerReadKey struct{}

// WithPeerRead returns a context for a read that another node has asked for.
func WithPeerRead(ctx context.Context) context.Context {
	return context.WithValue(ctx, peerReadKey{}, true)
}

// Onward reports whether another node may be asked for a blob that this one was asked for itself; asked says
// whether who asks takes it for one that acts for others: see [Ask.Onward].
func (t *Tier) Onward(ref schema.BlobRef, asked bool) bool {
	return t.route(ref).onward(asked)
}

// Astray reports whether this node has nothing to do with a blob: a node that takes it for one that acts for others has
// another view, as happens for some seconds when a job begins.
func (t *Tier) Astray(ref schema.BlobRef) bool {
	r := t.route(ref)
	return !r.Keep && len(r.Ask) > 0
}

// Mine reports whether this node is one that keeps a blob.
func (t *Tier) Mine(ref schema.BlobRef) bool {
	if t.mine != nil && (ref.Hashed() || !t.plain.Load()) {
		return t.mine.Mine(ref)
	}
	r := t.route(ref)
	return r.Keep || len(r.Ask) == 0
}

// Spare reports whether what this node keeps of a blob is kept near by, too, by the node that has it from the store.
func (t *Tier) Spare(ref schema.BlobRef) bool { return t.route(ref).Spare }

// choose returns a node of a route that can be asked for a blob: of the near ones, that with least under way.
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
		return nil, errNobody
	}
	return best, nil
}

// patienceFactor is how many times what its answers have taken of late a node may
// say nothing.
const patienceFactor = 4

// stalledFactor is how many times the patience a node may bring nothing that says that it is there. When a job begins
// on many nodes, all of them wait in one queue before the store, an owner's first answer as long as anything: a node
// given up then is asked for nothing for a while, and its blobs are read twice, by who wants them and by it.
const stalledFactor = 10

// node is the way to one node, and how that does. A node that was asked and says
// nothing at all for long is silent: what it was asked for fails, so that the
// store is read, and it is asked for one blob now and then, until it answers.
type node struct {
	name    string
	link    Link
	quitter Quitter // the link, if it is one
	opts    *Options
	made    time.Time

	silent atomic.Bool
	probed atomic.Int64 // when a silent node was last asked, as age tells

	fullUntil atomic.Int64 // when a node that was full may be asked again, by age
	pending   atomic.Int64 // asks under way

	asked, answered, bytes, refused, wrong, full, absent atomic.Int64

	mu      sync.Mutex
	under   int               // how many asks are under way
	asks    map[*ask]struct{} // those, where the link is no Quitter
	heard   time.Time         // when it last answered, or was asked after none was under way
	typical time.Duration     // how long answers take: the longest of late, falling slowly
	watch   *time.Timer       // runs while something is under way
	looked  time.Time         // when it last fired, or was set
	late    bool              // that look was late
}

// ask is a blob that a node is being asked for.
type ask struct{ cancel context.CancelCauseFunc }

// age is a time in nanoseconds that goes on evenly, whatever becomes of this machine's clock.
func (n *node) age() int64 { return int64(time.Since(n.made)) }

// usable reports whether the node may be asked. It takes no lock.
func (n *node) usable() bool {
	if full := n.fullUntil.Load(); full != 0 && n.age() < full {
		return false
	}
	return n.link.Up() && (!n.silent.Load() || n.age()-n.probed.Load() >= int64(n.opts.Retry))
}

// vouches reports whether what the node sends for a blob can be relied on: it can be compared with its hash, or comes
// by a way by which nothing comes but what the node has sent.
func (n *node) vouches(ref schema.BlobRef) bool { return ref.Hashed() || n.link.Secure() }

// check compares what the node has sent with all that is known of a blob.
func check(ref schema.BlobRef, data []byte) error {
	if ref.Hashed() {
		return ref.CheckHash(data)
	}
	return ref.Check(data)
}

// admit is usable of who asks next: of a silent node, one at a time may.
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

// get asks for a blob.
func (n *node) get(ctx context.Context, what Ask) (schema.Blob, error) {
	var a *ask
	if n.quitter == nil {
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
		if err = check(what.Ref, blob.Bytes()); err != nil { // here, where bytes are in the cache, and no socket waits
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

// distrust takes note that the node has sent other bytes than it was asked for: until it has sent right ones, it is
// asked as one that is silent is.
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
			n.watch = time.AfterFunc(n.opts.Patience/4, n.look)
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
		n.heard = now // it has said something, if no blob came
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

// answersLocked takes note that the node does not keep silent.
func (n *node) answersLocked() {
	if n.silent.Swap(false) {
		n.opts.Logger.LogAttrs(context.Background(), slog.LevelInfo, "another node answers again",
			slog.String("node", n.name))
	}
}

// look gives up what was asked of a node that says nothing.
func (n *node) look() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.under == 0 {
		return
	}
	n.watch.Reset(n.opts.Patience / 4)
	now := time.Now()
	late := now.Sub(n.looked) > n.opts.Patience/2 && !n.late
	if n.looked, n.late = now, late; late {
		// This process was not run: what came meanwhile has not been read yet. A second look that is late as well
		// counts, as they all are on a machine with too much to do.
		return
	}
	quiet := now.Sub(n.heard)
	bound := max(n.opts.Patience, patienceFactor*n.typical)
	if time.Since(n.link.Heard()) < n.opts.Patience {
		bound = max(bound, stalledFactor*n.opts.Patience) // it has a queue before the store, as this node would have
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
	n.typical /= 2 // or an owner whose store is slow would never be heard in time
	n.giveUpLocked(fmt.Errorf("it has brought nothing for %s", quiet.Round(time.Millisecond)))
}

// giveUpLocked ends all that is under way.
func (n *node) giveUpLocked(cause error) {
	if n.quitter != nil {
		n.quitter.GiveUp(cause)
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
	n.giveUpLocked(fmt.Errorf("%w: the node has left", schema.ErrUnavailable))
	n.mu.Unlock()
	return n.link.Close()
}
