package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"bowstring/fetch/peers"
	"bowstring/schema"
)

const (
	// streamWindow is what the other side may send unread. A path of 10 Gbit/s and some milliseconds is filled by it.
	streamWindow = 8 << 20
	// maxMessage is how long a message may be: a blob, or many, and their head.
	maxMessage = peers.MaxBlob + 4<<20
	// maxHello is how long a Hello may be.
	maxHello = 64 << 10
	// maxProgress is how long what a node says of its warming may be.
	maxProgress = 64 << 10
	// maxWhy is how much is kept of what a node says of a blob that it does not send.
	maxWhy = 1 << 10
	// maxTickets is how many bytes of tickets are told at a time.
	maxTickets = 1 << 20
	// helloTimeout is how long the other side may take to say who it is.
	helloTimeout = 5 * time.Second
	// Pauses before the link is set up again: the first, doubling up to the last.
	firstPause = 50 * time.Millisecond
	lastPause  = 3 * time.Second
	// keepaliveTime is after how much silence the other side is asked whether it is there.
	keepaliveTime   = 10 * time.Second
	keepaliveAnswer = 5 * time.Second
)

// Options says what a Link works with.
type Options struct {
	Cluster string      // whose nodes both are; "" for any
	Node    string      // this node's name, for the other's log
	Other   string      // the name of the node that is to be there; "" for any
	Zone    string      // where it is: the other limits by it what it sends
	Keys    *Keys       // of the cluster; none if the other side wants none
	TLS     *tls.Config // nil for none
	// Protocol is the only one that is spoken; 0 for those of this program.
	Protocol int
	Logger   *slog.Logger // default slog.Default()
}

// Link is a way to a node: see [peers.Link]. It is safe for concurrent use.
type Link struct {
	opts    Options
	address string
	made    time.Time
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // told when there is something to ask

	// when the other side last said anything: nanoseconds since made, whatever becomes of the clock
	heard    atomic.Int64
	up       atomic.Bool  // changed with mu held
	protocol atomic.Int32 // that is spoken; 0 while it is not up

	mu      sync.Mutex
	closed  bool
	next    uint32
	waiting map[uint32]*waiter
	asks    []Ask            // to be sent
	doing   []peers.Progress // what is to be told next; nil if nothing is
}

// waiter waits for an answer, which is sent to it once, unless it has left.
type waiter struct {
	size   int64
	answer chan answer // of one
}

type answer struct {
	blob schema.Blob
	err  error
}

// Dial returns a link to the node at an address, HOST:PORT. It does not wait until
// the node can be reached, and goes on trying until it is closed.
func Dial(address string, opts Options) (*Link, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("%w: address %q of a node: %w", schema.ErrInvalid, address, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{opts: opts, address: address, made: time.Now(), cancel: cancel, wake: make(chan struct{}, 1),
		waiting: map[uint32]*waiter{}}
	l.running.Go(func() { l.run(ctx) })
	return l, nil
}

// Up implements peers.Link.
func (l *Link) Up() bool { return l.up.Load() }

// Heard implements peers.Link.
func (l *Link) Heard() time.Time { return l.made.Add(time.Duration(l.heard.Load())) }

// Protocol implements peers.Link.
func (l *Link) Protocol() int { return int(l.protocol.Load()) }

// Secure implements peers.Link.
func (l *Link) Secure() bool { return l.opts.TLS != nil && l.opts.Keys.Any() }

// Close implements peers.Link.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.running.Wait()
	return nil
}

// errDown says that there is no way to the node now.
var errDown = fmt.Errorf("%w: there is no connection to it", schema.ErrUnavailable)

// errKeyGone says that the other node has proven to know a key that is the cluster's no longer.
var errKeyGone = fmt.Errorf("%w: the key that the node has proven to know is accepted no longer", schema.ErrUnavailable)

// Get implements peers.Link.
func (l *Link) Get(ctx context.Context, what peers.Ask) (schema.Blob, error) {
	if what.Ref.Size > peers.MaxBlob {
		return schema.Blob{}, fmt.Errorf("%w: a blob of %d bytes, and nodes ask each other for %d at most",
			schema.ErrLimit, what.Ref.Size, peers.MaxBlob)
	}
	w := &waiter{what.Ref.Size, make(chan answer, 1)}
	l.mu.Lock()
	if !l.up.Load() {
		l.mu.Unlock()
		return schema.Blob{}, errDown
	}
	l.next++
	id := l.next
	l.waiting[id] = w
	l.asks = append(l.asks, Ask{id, what})
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	select {
	case a := <-w.answer:
		return a.blob, a.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	_, there := l.waiting[id]
	delete(l.waiting, id)
	l.mu.Unlock()
	if !there {
		a := <-w.answer // it comes in this moment
		a.blob.Release()
	}
	return schema.Blob{}, context.Cause(ctx)
}

// Tell implements peers.Link.
func (l *Link) Tell(list []peers.Progress) {
	if list == nil {
		list = []peers.Progress{}
	}
	l.mu.Lock()
	l.doing = list
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run sets the link up, again and again, until ctx ends.
func (l *Link) run(ctx context.Context) {
	pause := backoff.ExponentialBackOff{
		InitialInterval: firstPause, MaxInterval: lastPause,
		Multiplier: backoff.DefaultMultiplier, RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
	pause.Reset()
	said := false
	for ctx.Err() == nil {
		began := time.Now()
		err := l.serve(ctx, func() { said = false })
		l.down(err)
		if time.Since(began) > lastPause { // or a node that answers nonsense would be asked again at once, for ever
			pause.Reset()
		}
		if ctx.Err() != nil {
			return
		}
		if !said {
			said = true
			l.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "there is no way to another node; the store is read instead",
				slog.String("address", l.address), slog.Any("error", err))
		}
		t := time.NewTimer(pause.NextBackOff())
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// open begins a call of a method, over a connection of its own, once both sides know each other. All ends when ctx
// does; cancel ends it. The caller closes the wire, and calls stop.
func (l *Link) open(ctx context.Context, cancel context.CancelCauseFunc,
	method string) (w *wire, protocol int, stop func() bool, err error) {
	late := time.AfterFunc(helloTimeout, func() {
		cancel(fmt.Errorf("it has not said who it is for %s", helloTimeout))
	})
	defer late.Stop()
	method = "/" + Service + "/" + method
	w, err = dialWire(ctx, l.address, l.opts.TLS, method, func() { l.heard.Store(int64(time.Since(l.made))) })
	if err != nil {
		return nil, 0, nil, because(ctx, err)
	}
	guest := Guest{
		Hello: Hello{Cluster: l.opts.Cluster, Node: l.opts.Node, Zone: l.opts.Zone, Other: l.opts.Other,
			Address: l.address},
		Keys: l.opts.Keys, Protocol: l.opts.Protocol,
	}
	other, known, err := guest.Meet(Way{Method: method, Binding: w.binding, Send: w.send,
		Receive: func() ([]byte, error) { return w.message(maxHello) }})
	if err == nil && !late.Stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = w.close() // it has broken already
		return nil, 0, nil, because(ctx, err)
	}
	return w, Agree(l.opts.Protocol, other.Protocols), known.Ends(func() { cancel(errKeyGone) }), nil
}

// serve opens the stream, tells of it, and serves it until it breaks.
func (l *Link) serve(ctx context.Context, opened func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w, speaks, stop, err := l.open(ctx, cancel, Method)
	if err != nil {
		return err
	}
	defer stop()
	defer func() { _ = w.close() }() // it has broken already
	l.mu.Lock()
	l.protocol.Store(int32(speaks))
	l.up.Store(!l.closed)
	l.mu.Unlock()
	opened()
	var asking sync.WaitGroup
	asking.Go(func() {
		if err := l.ask(ctx, w); err != nil {
			cancel(err)
		}
	})
	asking.Go(func() { w.watch(ctx, cancel) })
	for err == nil {
		var n int
		if n, err = w.next(); err == nil {
			err = l.deliver(w, n)
		}
	}
	cancel(err)
	_ = w.close() // it has broken already
	asking.Wait()
	return context.Cause(ctx)
}

// because is why ctx has ended, if it has: what was done with it has failed for that.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
