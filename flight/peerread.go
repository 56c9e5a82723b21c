package flight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/peers"
	"bowstring/flight/peer"
	"bowstring/flight/usage"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// The service for other nodes of the cluster. A node opens it by a proof that it knows
// the cluster's key, and reads blobs by their keys. Rules are kept by the node that the
// caller has called, which has asked them before it asks others.

// letInNode lets a node say what it wants, and prove what it is: see meet. Without a key of
// the cluster, every node is accepted if all callers may do everything, and no node
// otherwise: reads of blobs by their keys bypass the rules. A refusal counts as a failed
// login.
func (s *Server) letInNode(ctx context.Context) error {
	if !s.opts.Cluster.Keys.Any() && (s.opts.Auth.Authenticates() || s.source.Ruled()) {
		return s.refuseNode(ctx, "the cluster has no key")
	}
	return nil
}

// refuseNode returns the error for a node that is refused. It limits a client that guesses
// keys in the same way as one that guesses tokens, and reveals no more to it.
func (s *Server) refuseNode(ctx context.Context, why string) error {
	err := fmt.Errorf("%w: %s", schema.ErrUnauthenticated, why)
	if s.opts.Auth.Authenticates() {
		return s.opts.Auth.Refuse(ctx, err)
	}
	return err
}

// servePeer serves a connection that another node has opened. A connection has one call,
// because a call ends by closing it.
func (s *Server) servePeer(pc *wire.PeerConn) {
	defer func() { _ = pc.Close() }() // End has sent the result
	binding, err := bindingOf(pc.Conn)
	conn := peer.Accept(pc, binding)
	late := time.AfterFunc(s.opts.RequestTimeout, pc.Interrupt)
	method, failed := conn.Receive(peer.MaxMethod)
	late.Stop()
	if errors.Is(failed, peer.ErrBroken) {
		return
	}
	if err == nil {
		err = failed
	}
	if err == nil {
		err = s.peerCall(pc, conn, string(method))
	}
	st := status.New(codes.OK, "")
	if err != nil {
		st = statusOf(err)
	}
	_ = conn.End(st.Code(), st.Message()) // fails only if the connection is broken
}

// errStopped is the error of calls of other nodes that arrive after the server has
// stopped.
var errStopped = fmt.Errorf("%w: the server has stopped", schema.ErrUnavailable)

// peerCall runs the call of another node. It does for that call what streamCall does for
// clients: registration, authentication, limits, recovery from panics, log and metrics. It
// returns the error that End sends to the node.
func (s *Server) peerCall(pc *wire.PeerConn, conn *peer.Conn, method string) error {
	if s.opts.Cluster == nil || !isNodes(method) {
		return fmt.Errorf("%w: nodes call no method %s of this server", schema.ErrNotSupported, schema.Quote(method))
	}
	ctx := pc.Context(context.Background())
	known, c, err := s.calls.begin(ctx, method, pc.RemoteAddr().String())
	if err != nil {
		s.observeRefused(ctx, method, err)
		return err
	}
	ctx = known
	// Reads and writes of the connection know no context. Interrupt makes them fail when
	// the call is killed.
	defer context.AfterFunc(ctx, pc.Interrupt)()
	defer context.AfterFunc(s.handshaking, func() { s.calls.killCall(c, errStopped) })()
	if ctx, err = s.recognise(ctx, c); err != nil {
		s.observeRefused(ctx, method, err)
		s.calls.end(c)
		return err
	}
	c.observer, c.conn, c.incoming = s.opts.Observer, pc.Conn, s.memory.Lease(ctx, c.host)
	defer c.incoming.Release()
	conn.Memory = c.incoming
	var watching sync.WaitGroup
	watching.Go(func() { conn.Watch(ctx, func(why error) { s.calls.killCall(c, why) }) })
	err = s.guard(ctx, method, func() error {
		if method == peer.WarmMethod {
			return s.warmFor(ctx, conn)
		}
		return s.servePeerReads(ctx, conn)
	})
	err = c.outcome(err)
	if errors.Is(err, peer.ErrBroken) { // the node is gone: the same as a client that cancels
		err = fmt.Errorf("%w: %w", context.Canceled, err)
	}
	pc.Interrupt() // ends a ping that waits for room in the socket
	s.finish(ctx, c, err)
	watching.Wait()
	return err
}

// meet authenticates the node that makes a call, before anything is done for it. The node
// has RequestTimeout for its part. The call ends when the key by which the node has
// authenticated is no longer accepted; stop ends that watch.
func (s *Server) meet(ctx context.Context, conn *peer.Conn,
	method string) (hello peer.Hello, sealer *peer.Sealer, stop func() bool, err error) {
	c, timeout := callFrom(ctx), s.opts.RequestTimeout
	late := time.AfterFunc(timeout, func() {
		s.calls.killCall(c, fmt.Errorf("%w: the node has not proven what it is, and RequestTimeout is %s",
			schema.ErrLimit, timeout))
	})
	defer late.Stop()
	cluster := s.opts.Cluster
	host := peer.Host{Cluster: cluster.Name, Node: cluster.Node, Keys: cluster.Keys, Protocol: cluster.Protocol,
		Refuse: func(why string) error { return s.refuseNode(ctx, why) }}
	if cluster.Address != nil {
		host.Address = cluster.Address()
	}
	hello, known, err := host.Meet(conn.Way(method))
	if err != nil {
		return hello, nil, nil, err
	}
	return hello, known.Sealer(), known.Ends(func() {
		s.calls.killCall(c, fmt.Errorf("%w: the key that the node has proven to know is accepted no longer",
			schema.ErrUnavailable))
	}), nil
}

// bindingOf returns the value that identifies a TLS connection, nil without TLS. Both nodes
// prove the key together with it, so that a proof cannot be replayed on another connection.
func bindingOf(g *wire.Conn) ([]byte, error) {
	state, ok := g.TLS()
	if !ok {
		return nil, nil
	}
	b, err := peer.Binding(state)
	if err != nil {
		return nil, fmt.Errorf("%w: nodes use TLS 1.3: %w", schema.ErrInvalid, err)
	}
	return b, nil
}

// Cluster is a server's place in its cluster.
type Cluster struct {
	// Name is the cluster's name, and Node this node's.
	Name, Node string
	// Address returns the address at which other nodes reach this one, as HOST:PORT. nil,
	// or "", if it is not known. A node that has dialled another address is refused.
	Address func() string
	// Keys are the keys by which nodes authenticate to each other. A holder can read any
	// blob whose key it knows, without a check of the rules. Without keys, every node is
	// accepted if there are neither rules nor authentication, and no node otherwise.
	Keys *peer.Keys
	// Protocol is the only protocol version for other nodes; 0 for all versions of this
	// program.
	Protocol int
	// Met gets the name of each node that has been authenticated; nil for none. It must
	// not block.
	Met func(node string)
	// Egress counts and bounds the bytes that are sent to other nodes. By default they
	// have no bound.
	Egress *admission.Egress
	// WarmOthers makes each other node warm its part of a request, as this one does; nil
	// if there is no other. It calls progress, one call at a time, with each message of a
	// node, or with the reason for its end, and returns when all nodes have ended.
	WarmOthers func(ctx context.Context, request []byte, tenant string,
		progress func(node string, said []byte, err error))
}

const (
	// peerAnswerBytes and peerAnswerCount bound the answers of one message. A message has
	// the answers that are ready, and does not wait for more.
	peerAnswerBytes = 1 << 20
	peerAnswerCount = 256
	// thereEvery is the interval of heartbeats to a node that waits for answers, while
	// there are none: a silent node is taken for dead.
	thereEvery = 100 * time.Millisecond
	// mostUnsent bounds the answers that wait to be sent. The memory of peer reads bounds
	// blobs; this bounds refusals, which a node could request without ever reading them.
	mostUnsent = 4096
)

// servePeerReads serves another node. Requested blobs are read with the priority of
// streams of the request's tenants, and sent in any order.
func (s *Server) servePeerReads(ctx context.Context, conn *peer.Conn) error {
	hello, sealer, stopped, err := s.meet(ctx, conn, peer.ReadMethod)
	if err != nil {
		return err
	}
	defer stopped()
	if met := s.opts.Cluster.Met; met != nil {
		met(hello.Node)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(ctx, conn.Interrupt)()
	l := &answering{
		server: s, node: hello.Node, zone: hello.Zone,
		conn: conn, sealer: sealer, to: s.sentToPeers.to(hello.Node),
		ready: make(chan struct{}, 1), sent: make(chan struct{}, 1),
		doing: make(chan []fetch.Progress, 1), follower: s.source.Nodes().Follow(),
	}
	requester := s.source.Nodes().NewRequester(l.answered)
	var sending sync.WaitGroup
	sending.Go(func() { stop(l.send(ctx)) })
	sending.Go(func() { s.follow(ctx, hello.Node, l.follower, l.doing) })
	err = l.receive(ctx, requester)
	stop(err)
	requester.Close()
	sending.Wait()
	l.follower.Close()
	l.discard()
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// follow passes the progress of another node's streams to the engine, until ctx ends. It
// has a goroutine of its own, so that reads do not wait for an update.
func (s *Server) follow(ctx context.Context, node string, f *fetch.Follower, doing <-chan []fetch.Progress) {
	for {
		select {
		case list := <-doing:
			err := s.guard(ctx, peer.ReadMethod, func() error { return f.Update(ctx, list) })
			if err != nil && ctx.Err() == nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "some streams of another node are not followed",
					slog.String("node", node), slog.Any("error", err))
			}
		case <-ctx.Done():
			return
		}
	}
}

// answering is the state of one node's connection: its requests and its answers. receive,
// send and follow each have a goroutine.
type answering struct {
	server     *Server
	node, zone string // as the node has announced them

	conn   *peer.Conn
	sealer *peer.Sealer // for blobs without a hash; nil if they are not sealed

	to    *sentTo
	ready chan struct{}         // signalled when there is something to send
	sent  chan struct{}         // signalled when there is less
	doing chan []fetch.Progress // progress of the node's streams, the latest only

	// follower receives the progress of the node's streams.
	follower *fetch.Follower

	mu      sync.Mutex
	answers []fetch.Answer // ready to be sent; guarded by mu
	waited  int            // requests without an answer yet; guarded by mu
}

// receive starts the reads that the node requests, until the node ends the call. It does
// not wait for their answers, only for room for them: see admit.
func (l *answering) receive(ctx context.Context, requester *fetch.Requester) error {
	for {
		what, err := l.conn.Receive(peer.MaxAsking)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if len(what) > 0 && what[0] == peer.KindProgress {
			var list []fetch.Progress
			if err := json.Unmarshal(what[1:], &list); err != nil {
				return &schema.FieldError{Field: "progress", Got: fmt.Sprintf("%d bytes", len(what)),
					Want: "a list of streams as JSON"}
			}
			l.follower.Expect(list)
			select {
			case older := <-l.doing:
				keepTickets(list, older)
			default:
			}
			l.doing <- list // does not block: no other goroutine sends
			continue
		}
		err = peer.ParseAsks(what, func(a peer.Ask) error {
			if err := l.admit(ctx); err != nil {
				return err
			}
			asked := fetch.PeerRead{ID: a.ID, Tenant: a.Tenant, Ref: a.Ref, Snapshot: a.Snapshot, Position: a.Position,
				Forward: a.Forward, Held: a.Held}
			// The bytes are reserved before the read: a refusal after it would waste the
			// read.
			if !l.server.egress.Admit(l.node, l.zone, a.Tenant, l.server.termsOf(a.Tenant).Weight, a.Ref.Size) {
				l.answered(fetch.Answer{ID: a.ID, Err: peers.ErrFull, PeerRead: asked})
				return nil
			}
			switch err := requester.Read(ctx, asked); {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				l.answered(fetch.Answer{ID: a.ID, Err: err, PeerRead: asked})
			}
			return nil
		})
		if err != nil {
			return err
		}
		l.wake() // so that send begins heartbeats if the answers take long
	}
}

// keepTickets moves the tickets of a list that was not read into the list that replaces it.
// A node sends each ticket only once, so a dropped list would lose it.
func keepTickets(list, older []fetch.Progress) {
	tickets := make(map[uint64]json.RawMessage, len(older))
	for _, p := range older {
		if len(p.Ticket) > 0 {
			tickets[p.ID] = p.Ticket
		}
	}
	for i := range list {
		if p := &list[i]; len(p.Ticket) == 0 {
			p.Ticket = tickets[p.ID]
		}
	}
}

// answered queues the answer of a peer read. Any goroutine may call it; it does not
// block.
func (l *answering) answered(a fetch.Answer) {
	l.mu.Lock()
	l.answers = append(l.answers, a)
	l.waited--
	l.mu.Unlock()
	l.wake()
}

// wake makes send check for answers.
func (l *answering) wake() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// admit counts a request, once there is room for its answer. While there is none, the
// node's further requests stay in the socket.
func (l *answering) admit(ctx context.Context) error {
	for {
		l.mu.Lock()
		full := len(l.answers) >= mostUnsent
		if !full {
			l.waited++
		}
		l.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-l.sent:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// waits reports whether the other node waits for answers. send begins heartbeats then.
func (l *answering) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waited > 0
}

// take removes the answers of one message from the queue: at least one if there is any, and
// more within the bounds of a message. It then wakes admit.
func (l *answering) take() []fetch.Answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < len(l.answers) && n < peerAnswerCount && (n == 0 || size < peerAnswerBytes) {
		size += len(l.answers[n].Blob.Bytes())
		n++
	}
	taken := slices.Clone(l.answers[:n])
	clear(l.answers[:n])
	if l.answers = l.answers[n:]; len(l.answers) == 0 {
		l.answers = nil
	}
	select {
	case l.sent <- struct{}{}:
	default:
	}
	return taken
}

// send sends answers until ctx ends. While requests wait and no answer is ready, it sends
// an empty message every thereEvery as a heartbeat.
func (l *answering) send(ctx context.Context) error {
	there := time.NewTimer(thereEvery)
	defer there.Stop()
	for {
		answers := l.take()
		if len(answers) == 0 {
			var late <-chan time.Time
			if l.waits() {
				there.Reset(thereEvery)
				late = there.C
			}
			select {
			case <-l.ready:
				continue
			case <-late: // send a message without answers
			case <-ctx.Done():
				return nil
			}
		}
		list, batch := answersMessage(answers, l.sealer)
		blobs, bytes, size := int64(0), int64(0), -int64(peer.FrameHead)
		for i := range answers {
			if answers[i].Err == nil {
				blobs, bytes = blobs+1, bytes+int64(len(answers[i].Blob.Bytes()))
			}
		}
		for _, b := range list {
			size += int64(len(b))
		}
		l.bill(answers)
		err := l.conn.SendBuffers(list, wire.FreshUntil(batch, time.Now()))
		batch.Release()
		if err != nil {
			return err
		}
		count(ctx, len(answers), size)
		l.to.add(blobs, bytes, int64(len(answers))-blobs)
	}
}

// bill counts answers before they are sent: the bytes to the node, and the store reads of
// each tenant. Blobs that this node owned before count separately: they come
// from its cache while it leaves.
func (l *answering) bill(answers []fetch.Answer) {
	var blobs, bytes, handed, handedBytes int64
	for i := range answers {
		a := &answers[i]
		if a.Err != nil {
			continue
		}
		n := int64(len(a.Blob.Bytes()))
		blobs++
		bytes += n
		if a.PeerRead.Held {
			handed++
			handedBytes += n
		}
		if book := l.server.opts.Usage; book != nil && a.Stored {
			dataset, _, _ := strings.Cut(a.PeerRead.Snapshot, "@")
			book.Add(a.PeerRead.Tenant, cmp.Or(dataset, usage.Other), usage.Amount{StoreBytes: n})
		}
	}
	l.server.egress.Sent(l.node, l.zone, blobs-handed, bytes-handedBytes, false)
	if handed > 0 {
		l.server.egress.Sent(l.node, l.zone, handed, handedBytes, true)
	}
}

// discard releases the answers that will not be sent.
func (l *answering) discard() {
	for answers := l.take(); len(answers) > 0; answers = l.take() {
		for i := range answers {
			answers[i].Blob.Release()
		}
	}
}

// answersMessage builds a message of answers and takes ownership of their blobs. The
// returned batch has the blobs. The caller releases it when nothing reads the message any
// more.
//
// Large blobs are sent without a copy. Small blobs are copied, because a buffer of its own
// costs more than the copy. The head, small blobs and errors between two large blobs are
// one buffer. If a blob cannot be read any more, its answer becomes an error.
func answersMessage(answers []fetch.Answer, sealer *peer.Sealer) (net.Buffers, *schema.Batch) {
	room := peer.FrameHead + peer.AnswersBytes(len(answers))
	head := make([]peer.Answer, len(answers))
	small := make([][]byte, len(answers))
	seals := make([][]byte, len(answers))
	blobs := make([]schema.Blob, 0, len(answers))
	for i := range answers {
		a := &answers[i]
		if n := len(a.Blob.Bytes()); a.Err == nil && n <= wire.InlineBytes {
			if small[i], a.Err = cloned(a.Blob.Bytes()); a.Err != nil {
				a.Blob.Release()
				a.Blob = schema.Blob{}
			}
		}
		if a.Err == nil && sealer != nil && !a.PeerRead.Ref.Hashed() {
			if seals[i], a.Err = sealed(sealer, a.PeerRead.Ref, a.Blob.Bytes()); a.Err != nil {
				a.Blob.Release()
				a.Blob = schema.Blob{}
			}
		}
		head[i] = peer.Answer{ID: a.ID, Status: statusOfAnswer(a.Err), Size: len(a.Blob.Bytes()) + len(seals[i])}
		if a.Err != nil {
			small[i] = []byte(schema.Quote(a.Err.Error()))
			head[i].Size = len(small[i])
		} else {
			blobs = append(blobs, a.Blob)
		}
		room += len(small[i]) + len(seals[i])
	}
	own := peer.AppendAnswers(make([]byte, peer.FrameHead, room), head) // must not grow: list has slices of it
	list, from := make(net.Buffers, 0, 2*len(blobs)+1), 0
	for i := range answers {
		b := answers[i].Blob.Bytes()
		if answers[i].Err != nil || len(b) <= wire.InlineBytes {
			own = append(append(own, small[i]...), seals[i]...)
			continue
		}
		if len(own) > from {
			list = append(list, own[from:])
			from = len(own)
		}
		list = append(list, b)
		own = append(own, seals[i]...)
	}
	if len(own) > from {
		list = append(list, own[from:])
	}
	return list, &schema.Batch{Blobs: [][]schema.Blob{blobs}}
}

// statusOfAnswer returns the status of an answer for another node.
func statusOfAnswer(err error) peer.Status {
	switch {
	case err == nil:
		return peer.Here
	case errors.Is(err, schema.ErrDataLoss), errors.Is(err, schema.ErrNotFound):
		return peer.Lost
	case errors.Is(err, peers.ErrNotHeld):
		return peer.NotHeld
	case errors.Is(err, peers.ErrFull):
		return peer.Full
	}
	return peer.Failed
}

// sealed returns the seal of a blob. The blob may be in a mapped file, so a read error is a
// signal: Guard turns it into an error.
func sealed(sealer *peer.Sealer, ref schema.BlobRef, b []byte) (seal []byte, err error) {
	err = schema.Guard(func() error {
		seal = sealer.Append(nil, ref, b)
		return nil
	})
	return seal, err
}

// cloned returns a copy of bytes that may be in a mapped file.
func cloned(b []byte) (to []byte, err error) {
	err = schema.Guard(func() error {
		to = slices.Clone(b)
		return nil
	})
	return to, err
}
