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
	// Secure reports whether what comes by the link is from the node and unchanged: whether the node has proven who it
	// is, and nobody between can write. Without it only blobs are asked for whose key is the hash of their content.
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
	r := t.opts.Directory.Route(ref.Key)
	if len(r.Ask) == 0 || ref.Size > MaxBlob {
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
	r := t.opts.Directory.Route(ref.Key)
	if loan, _ := ctx.Value(loanKey{}).(bool); loan && !r.Keep {
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
	t.nodes.Store(&nodes)
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
	t.nodes.Store(&nodes)
	t.mu.Unlock()
	var errs []error
	for _, n := range dropped {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
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
