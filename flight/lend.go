package flight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/peers"
	"bowstring/flight/peering"
	"bowstring/flight/usage"
	"bowstring/schema"
)

// Cluster says what a server is in its cluster.
type Cluster struct {
	// Name is the cluster's, and Node this node's.
	Name, Node string
	// Key is what the nodes know each other by: whoever has it reads any blob whose
	// key it knows, without being asked for rules. No Key lets anybody where there are
	// neither rules nor callers that are to be known, and else nobody.
	Key []byte
	// Met is told the name of each node that has called and was let in; nil for nobody. It must not block.
	Met func(node string)
	// Egress counts what is sent to other nodes, and bounds it. Default: nothing is bounded.
	Egress *admission.Egress
	// WarmOthers has each other node warm its part of a request, as this one does; nil if there is no way to. It calls
	// progress, one call at a time, with what a node says, or why it says nothing more, and returns when all have ended.
	WarmOthers func(ctx context.Context, request []byte, tenant string, progress func(node string, said []byte, err error))
}

const (
	lendMethod = "/" + peering.Service + "/" + peering.Method
	warmMethod = "/" + peering.Service + "/" + peering.WarmMethod
	// lendBytes and lendAnswers are how much goes into one message, of what is there.
	lendBytes   = 1 << 20
	lendAnswers = 256
	// thereEvery is how often a node that waits for answers is told that this one is there, while there are none: who
	// says nothing is taken for gone.
	thereEvery = 100 * time.Millisecond
)

// lendService describes the service by which other nodes read blobs.
var lendService = grpc.ServiceDesc{
	ServiceName: peering.Service,
	HandlerType: (*interface {
		lend(grpc.ServerStream) error
		warmFor(grpc.ServerStream) error
	})(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: peering.Method, ServerStreams: true, ClientStreams: true,
		Handler: func(srv any, ss grpc.ServerStream) error { return srv.(*Server).lend(ss) },
	}, {
		StreamName: peering.WarmMethod, ServerStreams: true,
		Handler: func(srv any, ss grpc.ServerStream) error { return srv.(*Server).warmFor(ss) },
	}},
}

// lend serves another node. What it asks for is read as streams of its tenants
// would be, and sent in whatever order it comes.
func (s *Server) lend(ss grpc.ServerStream) error {
	var first wrapperspb.BytesValue
	if err := ss.RecvMsg(&first); err != nil {
		return err
	}
	var hello peering.Hello
	if err := json.Unmarshal(first.GetValue(), &hello); err != nil {
		return &schema.FieldError{Field: "hello", Got: schema.Quote(string(first.GetValue())), Want: "a node's name and protocols as JSON"}
	}
	protocol := peering.Agree(hello.Protocols)
	if protocol == 0 {
		return &schema.FieldError{Field: "protocols", Got: fmt.Sprint(hello.Protocols), Want: fmt.Sprintf("one of %v among them", peering.Spoken())}
	}
	if name := s.opts.Cluster.Name; name != "" && hello.Cluster != "" && hello.Cluster != name {
		return &schema.FieldError{Field: "cluster", Got: schema.Quote(hello.Cluster), Want: name + ", whose node this is"}
	}
	both := slices.DeleteFunc(peering.Features(), func(f string) bool { return !slices.Contains(hello.Features, f) })
	answer, err := json.Marshal(peering.Hello{Cluster: s.opts.Cluster.Name, Node: s.opts.Cluster.Node, Protocols: []int{protocol}, Features: both})
	if err != nil {
		return fmt.Errorf("encoding a hello: %w", err)
	}
	if err := ss.SendMsg(&frame{pieces: []piece{{bytes: answer}}}); err != nil {
		return err
	}
	if met := s.opts.Cluster.Met; met != nil {
		met(hello.Node)
	}
	ctx, stop := context.WithCancelCause(ss.Context())
	defer stop(nil)
	l := &lending{
		server: s, node: hello.Node, zone: hello.Zone, protocol: protocol,
		ss: ss, lent: s.lent.to(hello.Node), ready: make(chan struct{}, 1), doing: make(chan []fetch.Progress, 1),
	}
	borrower := s.borrow(l.answered)
	var sending sync.WaitGroup
	sending.Go(func() { stop(l.send(ctx)) })
	sending.Go(func() { s.follow(ctx, hello.Node, l.doing) })
	err = l.receive(ctx, borrower)
	stop(err)
	borrower.Close()
	sending.Wait()
	l.discard()
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// follow has the engine know what another node's streams do, until ctx ends.
func (s *Server) follow(ctx context.Context, node string, doing <-chan []fetch.Progress) {
	f := s.followed()
	defer f.Close()
	for {
		select {
		case list := <-doing:
			err := s.guard(ctx, lendMethod, func() error { return f.Update(ctx, list) })
			if err != nil && ctx.Err() == nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "some streams of another node are not followed",
					slog.String("node", node), slog.Any("error", err))
			}
		case <-ctx.Done():
			return
		}
	}
}

// lending is the answers to one node that are to be sent.
type lending struct {
	server     *Server
	node, zone string // as it says
	protocol   int    // that both speak

	ss    grpc.ServerStream
	lent  *lentTo
	ready chan struct{}         // told when there is something to send
	doing chan []fetch.Progress // what the node's streams do, the latest

	mu      sync.Mutex
	answers []fetch.Answer
	waited  int // asks without an answer yet
}

// receive has what the node asks for read, until it asks for no more.
func (l *lending) receive(ctx context.Context, borrower *fetch.Borrower) error {
	var m wrapperspb.BytesValue
	for {
		if err := l.ss.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		what := m.GetValue()
		if len(what) > 0 && what[0] == peering.KindProgress {
			var list []fetch.Progress
			if err := json.Unmarshal(what[1:], &list); err != nil {
				return &schema.FieldError{Field: "progress", Got: fmt.Sprintf("%d bytes", len(what)), Want: "a list of streams as JSON"}
			}
			select {
			case older := <-l.doing:
				keepTickets(list, older)
			default:
			}
			l.doing <- list // there is room: nobody else sends
			continue
		}
		err := peering.ParseAsks(what, func(a peering.Ask) error {
			l.mu.Lock()
			l.waited++
			l.mu.Unlock()
			loan := fetch.Loan{ID: a.ID, Tenant: a.Tenant, Ref: a.Ref, Snapshot: a.Snapshot, Position: a.Position, Onward: a.Onward, Held: a.Held}
			if !l.server.egress.Admit(l.node, l.zone, a.Tenant, l.server.termsOf(a.Tenant).Weight, a.Ref.Size) {
				l.answered(fetch.Answer{ID: a.ID, Err: peers.ErrFull, Loan: loan})
				return nil
			}
			switch err := borrower.Lend(ctx, loan); {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				l.answered(fetch.Answer{ID: a.ID, Err: err, Loan: loan})
			}
			return nil
		})
		if err != nil {
			return err
		}
		l.wake() // to say that this node is there, if the answers take long
	}
}

// keepTickets puts the tickets of a list that nobody has looked at into the one that comes in its place: each is
// told once.
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

// answered takes what became of a loan.
func (l *lending) answered(a fetch.Answer) {
	l.mu.Lock()
	l.answers = append(l.answers, a)
	l.waited--
	l.mu.Unlock()
	l.wake()
}

// wake has send look.
func (l *lending) wake() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// waits reports whether the other node waits for answers.
func (l *lending) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waited > 0
}

// take returns answers for one message.
func (l *lending) take() []fetch.Answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < len(l.answers) && n < lendAnswers && (n == 0 || size < lendBytes) {
		size += len(l.answers[n].Blob.Bytes())
		n++
	}
	taken := slices.Clone(l.answers[:n])
	clear(l.answers[:n])
	if l.answers = l.answers[n:]; len(l.answers) == 0 {
		l.answers = nil
	}
	return taken
}

// send sends answers until ctx ends.
func (l *lending) send(ctx context.Context) error {
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
			case <-late: // a message of no answers
			case <-ctx.Done():
				return nil
			}
		}
		blobs, bytes := int64(0), int64(0)
		for i := range answers {
			if answers[i].Err == nil {
				blobs, bytes = blobs+1, bytes+int64(len(answers[i].Blob.Bytes()))
			}
		}
		l.bill(answers)
		f := answersFrame(answers, l.protocol)
		if conn := gatherOf(ctx); conn != nil && f.hold != nil {
			f.hold.conn = conn
			conn.expect(f)
		}
		size := f.size()
		err := l.ss.SendMsg(f)
		f.discard()
		if err != nil {
			return err
		}
		count(ctx, len(answers), size)
		l.lent.add(blobs, bytes, int64(len(answers))-blobs)
	}
}

// bill counts answers that are about to be sent: what went to which node, and what was read from the store on whose account.
func (l *lending) bill(answers []fetch.Answer) {
	var blobs, bytes, handed, handedBytes int64
	for i := range answers {
		a := &answers[i]
		if a.Err != nil {
			continue
		}
		n := int64(len(a.Blob.Bytes()))
		blobs++
		bytes += n
		if a.Loan.Held {
			handed++
			handedBytes += n
		}
		if book := l.server.opts.Usage; book != nil && a.Stored {
			dataset, _, _ := strings.Cut(a.Loan.Snapshot, "@")
			book.Add(a.Loan.Tenant, cmp.Or(dataset, usage.Other), usage.Amount{StoreBytes: n})
		}
	}
	l.server.egress.Sent(l.node, l.zone, blobs-handed, bytes-handedBytes, false)
	if handed > 0 {
		l.server.egress.Sent(l.node, l.zone, handed, handedBytes, true)
	}
}

// discard releases what will not be sent.
func (l *lending) discard() {
	for answers := l.take(); len(answers) > 0; answers = l.take() {
		for i := range answers {
			answers[i].Blob.Release()
		}
	}
}

// answersFrame makes a message of answers, whose blobs it takes over, for a node that speaks a protocol.
func answersFrame(answers []fetch.Answer, protocol int) *frame {
	head := make([]peering.Answer, len(answers))
	blobs := make([]schema.Blob, 0, len(answers))
	pieces := make([]piece, 1, 1+len(answers))
	held := int32(0)
	for i, a := range answers {
		head[i] = peering.Answer{ID: a.ID, Status: peering.Here, Size: len(a.Blob.Bytes())}
		if a.Err != nil {
			why := []byte(schema.Quote(a.Err.Error()))
			head[i].Status, head[i].Size = peering.Failed, len(why)
			switch {
			case errors.Is(a.Err, schema.ErrDataLoss), errors.Is(a.Err, schema.ErrNotFound):
				head[i].Status = peering.Lost
			case protocol > 1 && errors.Is(a.Err, peers.ErrNotHeld):
				head[i].Status = peering.NotHeld
			case protocol > 1 && errors.Is(a.Err, peers.ErrFull):
				head[i].Status = peering.Full
			}
			pieces = append(pieces, piece{bytes: why})
			continue
		}
		b := a.Blob.Bytes()
		if len(b) > inlineBytes {
			pieces = append(pieces, piece{bytes: b[:len(b):len(b)], held: true})
			held++
		} else if len(b) > 0 {
			pieces = append(pieces, piece{bytes: slices.Clone(b)})
		}
		blobs = append(blobs, a.Blob)
	}
	pieces[0].bytes = peering.AppendAnswers(nil, head)
	f, ref := &frame{pieces: pieces}, &batchRef{batch: &schema.Batch{Blobs: [][]schema.Blob{blobs}}}
	if held == 0 {
		ref.release()
		return f
	}
	f.hold = &hold{batch: ref}
	f.hold.left.Store(held)
	runtime.AddCleanup(f.hold, (*batchRef).release, ref) // see encoder.batchFrame
	return f
}
