package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"bowstring/fetch"
	"bowstring/flight/peering"
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
}

const (
	lendMethod = "/" + peering.Service + "/" + peering.Method
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
	HandlerType: (*interface{ lend(grpc.ServerStream) error })(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: peering.Method, ServerStreams: true, ClientStreams: true,
		Handler: func(srv any, ss grpc.ServerStream) error { return srv.(*Server).lend(ss) },
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
	if !slices.Contains(hello.Protocols, peering.Protocol) {
		return &schema.FieldError{Field: "protocols", Got: fmt.Sprint(hello.Protocols), Want: fmt.Sprintf("%d among them", peering.Protocol)}
	}
	if name := s.opts.Cluster.Name; name != "" && hello.Cluster != "" && hello.Cluster != name {
		return &schema.FieldError{Field: "cluster", Got: schema.Quote(hello.Cluster), Want: name + ", whose node this is"}
	}
	answer, err := json.Marshal(peering.Hello{Cluster: s.opts.Cluster.Name, Node: s.opts.Cluster.Node, Protocols: []int{peering.Protocol}})
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
	l := &lending{ss: ss, lent: s.lent.to(hello.Node), ready: make(chan struct{}, 1), doing: make(chan []fetch.Progress, 1)}
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
		if len(what) == 0 || what[0] != peering.KindAsks {
			return &schema.FieldError{Field: "message", Got: fmt.Sprintf("%d bytes of another kind", len(what)), Want: "asks or progress"}
		}
		err := peering.ParseAsks(what[1:], func(a peering.Ask) error {
			l.mu.Lock()
			l.waited++
			l.mu.Unlock()
			loan := fetch.Loan{ID: a.ID, Tenant: a.Tenant, Ref: a.Ref, Snapshot: a.Snapshot, Position: a.Position}
			switch err := borrower.Lend(ctx, loan); {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				l.answered(fetch.Answer{ID: a.ID, Err: err})
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
		f := answersFrame(answers)
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

// discard releases what will not be sent.
func (l *lending) discard() {
	for answers := l.take(); len(answers) > 0; answers = l.take() {
		for i := range answers {
			answers[i].Blob.Release()
		}
	}
}

// answersFrame makes a message of answers, whose blobs it takes over.
func answersFrame(answers []fetch.Answer) *frame {
	head := make([]peering.Answer, len(answers))
	blobs := make([]schema.Blob, 0, len(answers))
	pieces := make([]piece, 1, 1+len(answers))
	held := int32(0)
	for i, a := range answers {
		head[i] = peering.Answer{ID: a.ID, Status: peering.Here, Size: len(a.Blob.Bytes())}
		if a.Err != nil {
			why := []byte(schema.Quote(a.Err.Error()))
			head[i].Status, head[i].Size = peering.Failed, len(why)
			if errors.Is(a.Err, schema.ErrDataLoss) || errors.Is(a.Err, schema.ErrNotFound) {
				head[i].Status = peering.Lost
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
