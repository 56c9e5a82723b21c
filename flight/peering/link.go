package peering

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

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
	Cluster string       // whose nodes both are; "" for any
	Node    string       // this node's name, for the other's log
	Other   string       // the name of the node that is to be there; "" for any
	Zone    string       // where it is: the other limits by it what it sends
	Key     []byte       // of the cluster; none if the other side wants none
	TLS     *tls.Config  // nil for none
	Newest  int          // the newest protocol that is spoken; 0 for Protocol
	Logger  *slog.Logger // default slog.Default()
}

// Link is a way to a node: see [peers.Link]. It is safe for concurrent use.
type Link struct {
	opts    Options
	address string
	made    time.Time
	conn    *grpc.ClientConn // of all calls but that by which blobs come
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // told when there is something to ask

	// when the other side last said anything: nanoseconds since made, whatever becomes of the clock
	heard    atomic.Int64
	up       atomic.Bool  // changed with mu held
	protocol atomic.Int32 // that is spoken; 0 while it is not up
	warms    atomic.Bool  // the other side has FeatureWarm

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
	creds := insecure.NewCredentials()
	if opts.TLS != nil {
		creds = credentials.NewTLS(opts.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveAnswer}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}), grpc.MaxCallRecvMsgSize(maxMessage)),
	}...)
	if err != nil {
		return nil, fmt.Errorf("address %q of a node: %w", address, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{opts: opts, address: address, made: time.Now(), conn: conn, cancel: cancel, wake: make(chan struct{}, 1),
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
func (l *Link) Secure() bool { return l.opts.TLS != nil && len(l.opts.Key) > 0 }

// Close implements peers.Link.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.running.Wait()
	return l.conn.Close()
}

// errDown says that there is no way to the node now.
var errDown = fmt.Errorf("%w: there is no connection to it", schema.ErrUnavailable)

// errTooOld says that the other node cannot be told what is asked of it.
var errTooOld = fmt.Errorf("%w: its version knows nothing of nodes that leave", peers.ErrNotHeld)

// Get implements peers.Link. A node of protocol 1 knows no flags: it reads whatever it is asked for from the store, so
// what is wanted only if it is held is not asked of it; and it asks nobody else for it, which costs a read of the store
// and no wrong byte.
func (l *Link) Get(ctx context.Context, what peers.Ask) (schema.Blob, error) {
	if what.Ref.Size > peers.MaxBlob {
		return schema.Blob{}, fmt.Errorf("%w: a blob of %d bytes, and nodes ask each other for %d at most",
			schema.ErrLimit, what.Ref.Size, peers.MaxBlob)
	}
	w := &waiter{what.Ref.Size, make(chan answer, 1)}
	l.mu.Lock()
	switch {
	case !l.up.Load():
		l.mu.Unlock()
		return schema.Blob{}, errDown
	case what.Held && l.protocol.Load() == 1:
		l.mu.Unlock()
		return schema.Blob{}, errTooOld
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

// key is the header that shows the cluster's key.
func (l *Link) key() []hpack.HeaderField {
	if len(l.opts.Key) == 0 {
		return nil
	}
	return []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + string(l.opts.Key), Sensitive: true}}
}

// authorized returns a context that shows the cluster's key.
func (l *Link) authorized(ctx context.Context) context.Context {
	if len(l.opts.Key) == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+string(l.opts.Key))
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

// serve opens the stream, tells of it, and serves it until it breaks.
func (l *Link) serve(ctx context.Context, opened func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hello, err := json.Marshal(Hello{Cluster: l.opts.Cluster, Node: l.opts.Node, Zone: l.opts.Zone,
		Protocols: Spoken(l.opts.Newest), Features: Features(l.opts.Newest)})
	if err != nil {
		return fmt.Errorf("encoding a hello: %w", err)
	}
	late := time.AfterFunc(helloTimeout, func() {
		cancel(fmt.Errorf("it has not said who it is for %s", helloTimeout))
	})
	defer late.Stop()
	w, err := dialWire(ctx, l.address, l.opts.TLS, "/"+Service+"/"+Method, func() {
		l.heard.Store(int64(time.Since(l.made)))
	}, l.key()...)
	if err != nil {
		return because(ctx, err)
	}
	defer func() { _ = w.close() }() // it has broken already
	if err := w.send(hello); err != nil {
		return because(ctx, err)
	}
	n, err := w.next()
	if err == nil && n > maxHello {
		err = errAnswers
	}
	if err != nil {
		return because(ctx, err)
	}
	answer := make([]byte, n)
	if _, err := io.ReadFull(w, answer); err != nil {
		return because(ctx, err)
	}
	var other Hello
	err = json.Unmarshal(answer, &other)
	speaks := Agree(l.opts.Newest, other.Protocols)
	if err != nil || speaks == 0 {
		return fmt.Errorf("%w: it speaks protocols %v; want one of %v", schema.ErrUnavailable, other.Protocols,
			Spoken(l.opts.Newest))
	}
	if err := l.opts.check(other); err != nil {
		return err
	}
	if !late.Stop() {
		return context.Cause(ctx)
	}
	l.mu.Lock()
	l.protocol.Store(int32(speaks))
	l.warms.Store(slices.Contains(other.Features, FeatureWarm))
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

// check returns an error if it is not the node that is to be there: addresses are used again, by other machines.
func (o *Options) check(other Hello) error {
	if o.Cluster != "" && other.Cluster != "" && other.Cluster != o.Cluster {
		return fmt.Errorf("%w: it is of cluster %s; want %s", schema.ErrUnavailable, schema.Quote(other.Cluster),
			o.Cluster)
	}
	if o.Other != "" && other.Node != o.Other {
		return fmt.Errorf("%w: it is node %s; want %s", schema.ErrUnavailable, schema.Quote(other.Node), o.Other)
	}
	return nil
}
