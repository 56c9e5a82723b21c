package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

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
