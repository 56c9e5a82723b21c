// Package peer carries reads of blobs between nodes: the messages, and the requesting
// side, a [Link]. The answering side is part of the server in package flight, because it
// sends blobs from mapped files without a copy, as streams do.
//
// A link is one connection over TCP or TLS. Requests go one way and answers the other, in
// any order. Each message is its length and its bytes: see [Conn]. When the connection
// breaks, the link opens it again; reads that were under way fail, and the requester
// reads these blobs from the store. Begin with [Dial] and [Link.Get].
package peer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/bits"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"bowstring/fetch/peers"
	"bowstring/schema"
)

const (
	// maxMessage bounds a message in bytes: its head, and one large blob or many small
	// ones.
	maxMessage = peers.MaxBlob + 4<<20
	// maxProgress bounds a message about the progress of warming.
	maxProgress = 64 << 10
	// maxWhy bounds the text that is kept of the other node's reason for not sending a
	// blob.
	maxWhy = 1 << 10
	// maxTickets bounds the tickets of one message, in bytes.
	maxTickets = 1 << 20
	// helloTimeout bounds the handshake, with connecting.
	helloTimeout = 5 * time.Second
	// The link pauses before it connects again. The pause doubles from firstPause to
	// lastPause.
	firstPause = 50 * time.Millisecond
	lastPause  = 3 * time.Second
	// keepaliveTime is the silence after which the other side is pinged, and
	// keepaliveAnswer is how long it then has to answer.
	keepaliveTime   = 10 * time.Second
	keepaliveAnswer = 5 * time.Second
)

// Options configure a Link.
type Options struct {
	Cluster string      // the cluster of both nodes; "" for any
	Node    string      // this node's name, for the other's log
	Other   string      // the name that the other node must have; "" for any
	Zone    string      // this node's zone: the other side limits what it sends to each zone
	Keys    *Keys       // keys of the cluster; none if the other side requires none
	TLS     *tls.Config // nil for no TLS
	// Protocol is the only protocol version to use; 0 for all versions of this program.
	Protocol int
	Logger   *slog.Logger // default slog.Default()
}

// Link is a connection to a node that is kept open: see [peers.Link]. It is safe for
// concurrent use. One goroutine (run) connects and receives, one sends, and one watches
// for silence.
type Link struct {
	opts    Options
	address string
	made    time.Time
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // signalled when there is a request to send

	// heard is when the other side last sent a byte: nanoseconds since made, by the
	// monotonic clock.
	heard    atomic.Int64
	up       atomic.Bool  // changed with mu held
	protocol atomic.Int32 // the version in use; 0 while the link is down

	// mu guards the fields below. waiting has the reads under way by their id; next is
	// the last id given. sealer is nil while the link is down or has TLS.
	mu      sync.Mutex
	closed  bool
	next    uint32
	waiting map[uint32]*waiter
	asks    []Ask            // not sent yet
	doing   []peers.Progress // to be sent next; nil if there is nothing
	sealer  *Sealer          // of blobs without a hash; nil if they are not sealed
}

// waiter is a read that waits for its answer. It gets exactly one answer, unless its
// goroutine has removed it from waiting.
type waiter struct {
	size   int64       // expected bytes, with the seal if there is one
	answer chan answer // capacity 1, so that the receiving goroutine never blocks
}

// answer is the result of a read. Its receiver owns the blob.
type answer struct {
	blob schema.Blob
	err  error
}

// Dial returns a link to the node at an address, HOST:PORT. It does not wait for the
// connection: the link connects in the background until Close. It fails only if the
// address is malformed.
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

// Secure implements peers.Link. Without TLS, blobs that have no hash are sealed.
func (l *Link) Secure() bool { return l.opts.Keys.Any() }

// Close implements peers.Link.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.running.Wait()
	return nil
}

// unseal verifies a blob's seal and removes it. A nil sealer means that the blob has
// none. It releases the blob if the seal is wrong.
func unseal(a answer, ref schema.BlobRef, sealer *Sealer) (schema.Blob, error) {
	if a.err != nil || sealer == nil {
		return a.blob, a.err
	}
	content, seal := a.blob.Bytes()[:ref.Size], a.blob.Bytes()[ref.Size:]
	if !sealer.Holds(seal, ref, content) {
		a.blob.Release()
		return schema.Blob{}, fmt.Errorf("%w: what came for blob %s is not from the node: its seal is another",
			schema.ErrDataLoss, ref.Key)
	}
	return a.blob.First(ref.Size), nil
}

// errNoSeals means that the node cannot send a blob without a hash, because nothing would
// prove its bytes.
var errNoSeals = fmt.Errorf("%w: without TLS it sends no blob without a hash, or none so large", schema.ErrUnavailable)

// errDown means that there is no connection to the node now. The caller reads the store.
var errDown = fmt.Errorf("%w: there is no connection to it", schema.ErrUnavailable)

// errKeyGone means that the key by which the nodes have authenticated is no longer one of
// the cluster's.
var errKeyGone = fmt.Errorf("%w: the key that the node has proven to know is accepted no longer", schema.ErrUnavailable)

// Get implements peers.Link. It registers the read, wakes the sending goroutine, and
// waits. If ctx ends first, it removes the read; if the answer is already on its way to
// it, it waits for that and releases the blob, which no other goroutine would do.
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
	var sealer *Sealer
	if l.opts.TLS == nil && !what.Ref.Hashed() {
		if sealer = l.sealer; sealer == nil || what.Ref.Size > peers.MaxBlob-SealBytes {
			l.mu.Unlock()
			return schema.Blob{}, errNoSeals
		}
		w.size += SealBytes
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
		return unseal(a, what.Ref, sealer)
	case <-ctx.Done():
	}
	l.mu.Lock()
	_, there := l.waiting[id]
	delete(l.waiting, id)
	l.mu.Unlock()
	if !there {
		// The receiving goroutine has removed the read already: its answer comes at once.
		a := <-w.answer
		a.blob.Release()
	}
	return schema.Blob{}, context.Cause(ctx)
}

// SendProgress implements peers.Link. A list that was not sent yet is replaced: only the
// newest one matters.
func (l *Link) SendProgress(list []peers.Progress) {
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

// run connects and serves until ctx ends. It logs only the first of successive failures: a
// node that is down for a day would otherwise fill the log.
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
		if time.Since(began) > lastPause { // a node that sends only broken messages must not be dialled without pauses
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

// met is the result of a handshake.
type met struct {
	protocol int
	sealer   *Sealer // of blobs without a hash; nil if they are not sealed
}

// open connects and authenticates for a method. Everything ends with ctx, which cancel
// ends. The caller calls end. If the handshake takes longer than helloTimeout, cancel
// ends it: a program that accepts connections and never answers would otherwise hold the
// link for ever.
func (l *Link) open(ctx context.Context, cancel context.CancelCauseFunc,
	method string) (c *Conn, how met, end func(), err error) {
	late := time.AfterFunc(helloTimeout, func() {
		cancel(fmt.Errorf("it has not said what it is for %s", helloTimeout))
	})
	defer late.Stop()
	c, hangUp, err := Connect(ctx, l.address, l.opts.TLS, method, func() {
		l.heard.Store(int64(time.Since(l.made)))
	})
	if err != nil {
		return nil, met{}, nil, because(ctx, err)
	}
	guest := Guest{
		Hello: Hello{Cluster: l.opts.Cluster, Node: l.opts.Node, Zone: l.opts.Zone, Other: l.opts.Other,
			Address: l.address},
		Keys: l.opts.Keys, Protocol: l.opts.Protocol,
	}
	other, known, err := guest.Meet(c.Way(method))
	if err == nil && !late.Stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		hangUp()
		return nil, met{}, nil, because(ctx, err)
	}
	stop := known.Ends(func() { cancel(errKeyGone) })
	meeting := met{agree(l.opts.Protocol, other.Protocols), known.Sealer()}
	return c, meeting, func() { stop(); hangUp() }, nil
}

// serve opens the connection, calls opened, and handles messages until it breaks. It
// returns the first cause, after all its goroutines have ended.
func (l *Link) serve(ctx context.Context, opened func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, how, end, err := l.open(ctx, cancel, ReadMethod)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.protocol.Store(int32(how.protocol))
	l.sealer = how.sealer
	l.up.Store(!l.closed)
	l.mu.Unlock()
	opened()
	var asking sync.WaitGroup
	asking.Go(func() {
		if err := l.ask(ctx, c); err != nil {
			cancel(err)
		}
	})
	asking.Go(func() { c.Watch(ctx, cancel) })
	for err == nil {
		var n int
		if n, err = c.next(maxMessage); err == nil {
			err = l.deliver(c, n)
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the other side has ended the call")
	}
	cancel(err)
	end()
	asking.Wait()
	return context.Cause(ctx)
}

// because returns the cause of ctx if ctx has ended: err then is only its consequence.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// ask sends requests and progress until ctx ends. It has a goroutine of its own, so that
// receiving never waits for room in the socket.
func (l *Link) ask(ctx context.Context, c *Conn) error {
	reported := map[uint64]bool{} // streams whose ticket was sent
	for {
		// Let goroutines that are about to request come first: their requests go in one
		// message, which wakes the other node once.
		runtime.Gosched()
		l.mu.Lock()
		doing := l.doing
		l.doing = nil
		n := min(len(l.asks), maxAsks)
		asks := l.asks[:n:n]
		if l.asks = l.asks[n:]; len(l.asks) == 0 {
			l.asks = nil
		}
		l.mu.Unlock()
		var err error
		if doing != nil {
			err = c.Send(progressMessage(doing, reported))
		}
		if n > 0 && err == nil {
			err = c.Send(AppendAsks(nil, asks))
		}
		if err != nil {
			c.Interrupt()
			return nil //nolint:nilerr // the receiving goroutine reports the cause
		}
		if n == 0 {
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// progressMessage encodes the progress of streams. Each ticket is sent once, and only as
// many in one message as maxTickets has room for; the others follow in the next.
func progressMessage(list []peers.Progress, reported map[uint64]bool) []byte {
	list = slices.Clone(list)
	there := make(map[uint64]bool, len(list))
	room := maxTickets
	for i := range list {
		p := &list[i]
		there[p.ID] = true
		if reported[p.ID] || len(p.Ticket) > room {
			p.Ticket = nil
			continue
		}
		room -= len(p.Ticket)
		reported[p.ID] = true
	}
	maps.DeleteFunc(reported, func(id uint64, _ bool) bool { return !there[id] })
	b, err := json.Marshal(list)
	if err != nil {
		panic(err) // tickets are JSON
	}
	return append([]byte{KindProgress}, b...)
}

const (
	// atOnceBytes bounds the memory that is allocated for announced blobs before any byte
	// of them has come: it is what one system call reads. atOnceBlobs bounds their
	// number.
	atOnceBytes = 256 << 10
	atOnceBlobs = 64
)

// arrivals are the blobs of a message that are being read, in the order of the message.
// Only the receiving goroutine uses them.
type arrivals struct {
	ids   []uint32
	blobs []schema.Blob
	left  [][]byte // the unread part of each blob's memory
}

// deliver passes the answers of a message of n bytes to the reads that wait for them. It
// reads blobs directly into the memory that they keep, several by one system call. An
// answer with another size than the request's ends the connection.
func (l *Link) deliver(c *Conn, n int) error {
	answers, err := readAnswers(c, n)
	if err != nil {
		return err
	}
	n -= answersHead + len(answers)*answerBytes
	var come arrivals
	defer come.discard()
	bytes := 0
	for _, a := range answers {
		n -= a.Size
		l.mu.Lock()
		// An id that was never given shows that the other side is confused about the stream
		// of messages. An id that is no longer waiting is normal: its read was cancelled.
		to := l.waiting[a.ID]
		asked := int32(a.ID-l.next) <= 0 // ids wrap around
		l.mu.Unlock()
		switch {
		case !asked:
			return errAnswers
		case to != nil && a.Status == Here && int64(a.Size) != to.size:
			return fmt.Errorf("%w: it has sent %d bytes of a blob of %d", schema.ErrUnavailable, a.Size, to.size)
		case to != nil && a.Status == Here && a.Size > 0:
			come.add(a)
			if bytes += a.Size; bytes < atOnceBytes && len(come.ids) < atOnceBlobs {
				continue
			}
			bytes = 0
			if err := l.arrive(c, &come); err != nil {
				return err
			}
			continue
		}
		if err := l.arrive(c, &come); err != nil { // the blobs before this answer
			return err
		}
		bytes = 0
		var is answer
		switch {
		case to == nil: // the read was cancelled
			err = discard(c, a.Size)
		case a.Status != Here:
			is.err, err = readWhy(c, a)
		}
		if err != nil {
			return err
		}
		l.answered(a.ID, is)
	}
	if err := l.arrive(c, &come); err != nil {
		return err
	}
	return discard(c, n) // fields of a later version
}

// add allocates the memory of a blob.
func (c *arrivals) add(a Answer) {
	b := newBuffer(a.Size)
	memory := b.memory[:a.Size:a.Size]
	c.ids, c.blobs, c.left = append(c.ids, a.ID), append(c.blobs, schema.NewBlob(memory, b)), append(c.left, memory)
}

// arrive reads all blobs of c. It hands each over as soon as it is complete.
func (l *Link) arrive(from *Conn, c *arrivals) error {
	for len(c.left) > 0 {
		n, err := from.fill(c.left)
		if err != nil {
			return err
		}
		// n bytes fill the memories in order. whole counts those that are complete.
		whole := 0
		for n > 0 {
			if first := c.left[whole]; n < len(first) {
				c.left[whole] = first[n:]
				break
			}
			n -= len(c.left[whole])
			whole++
		}
		for i := range whole {
			l.answered(c.ids[i], answer{blob: c.blobs[i]})
		}
		c.ids, c.blobs, c.left = c.ids[whole:], c.blobs[whole:], c.left[whole:]
	}
	*c = arrivals{}
	return nil
}

// discard releases the blobs that did not arrive completely.
func (c *arrivals) discard() {
	for _, b := range c.blobs {
		b.Release()
	}
}

// answered passes an answer to the read that waits for it, if it still waits: the answer
// may have taken long to arrive.
func (l *Link) answered(id uint32, is answer) {
	l.mu.Lock()
	w := l.waiting[id]
	delete(l.waiting, id)
	l.mu.Unlock()
	if w == nil {
		is.blob.Release()
		return
	}
	w.answer <- is
}

// readWhy reads the reason why a blob is not sent, and returns it as an error.
func readWhy(r io.Reader, a Answer) (why, err error) {
	text := make([]byte, min(a.Size, maxWhy))
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	is := schema.ErrUnavailable
	switch a.Status {
	case Lost:
		is = schema.ErrNotFound
	case NotHeld:
		is = peers.ErrNotHeld
	case Full:
		is = peers.ErrFull
	case Failed, Here:
	}
	return fmt.Errorf("%w: it says %s", is, text), discard(r, a.Size-len(text))
}

// discard skips n bytes.
func discard(r io.Reader, n int) error {
	if n == 0 {
		return nil
	}
	_, err := io.CopyN(io.Discard, r, int64(n))
	return err
}

// CancelAll implements peers.BulkCanceler.
func (l *Link) CancelAll(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks = nil
	l.failLocked(cause)
}

// failLocked ends all waiting reads with cause. mu is held.
func (l *Link) failLocked(cause error) {
	for id, w := range l.waiting {
		w.answer <- answer{err: cause}
		delete(l.waiting, id)
	}
}

// down marks the link as down and fails all reads. Their callers read the store.
func (l *Link) down(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up.Store(false)
	l.protocol.Store(0)
	l.asks = nil
	l.failLocked(fmt.Errorf("%w: the connection broke: %w", schema.ErrUnavailable, err))
}

// Warm makes the node warm its part of a request, and calls progress with each of its
// messages, which are results of the action warm. It uses a connection of its own, with a
// handshake of its own.
func (l *Link) Warm(ctx context.Context, what Warm, progress func([]byte)) error {
	if !l.up.Load() {
		return errDown
	}
	b, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encoding what to warm: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, _, end, err := l.open(ctx, cancel, WarmMethod)
	if err != nil {
		return err
	}
	defer end()
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() { c.Watch(ctx, cancel) })
	if err := c.Send(b); err != nil {
		return because(ctx, err)
	}
	for {
		said, err := c.Receive(maxProgress)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return because(ctx, err)
		}
		progress(said)
	}
}

// Memory of received blobs is reused. There are four sizes in each power of two, so that at
// most a fifth of the memory is wasted.
const (
	leastBits = 10
	mostBits  = 26 // peers.MaxBlob
	classes   = (mostBits-leastBits)*4 + 1
)

// free has the unused buffers by size class. The pools let the garbage collector shrink
// them.
var free [classes]sync.Pool // of *buffer

// buffer is the memory of one blob. The owner of the blob owns it until Unpin.
type buffer struct {
	class  int
	memory []byte
}

// newBuffer returns memory of at least n bytes with undefined content.
func newBuffer(n int) *buffer {
	class, size := 0, 1<<leastBits
	if n > size {
		exp := bits.Len64(uint64(n-1)) - 1 // 2^exp < n <= 2^(exp+1)
		quarter := 1 << (exp - 2)
		steps := (n - 1<<exp + quarter - 1) / quarter // 1 to 4
		class, size = (exp-leastBits)*4+steps, 1<<exp+steps*quarter
	}
	if b, ok := free[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{class, make([]byte, size)}
}

// Unpin implements schema.Owner. The blob must not be used afterwards.
func (b *buffer) Unpin() { free[b.class].Put(b) }
