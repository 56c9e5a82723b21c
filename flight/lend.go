package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/peers"
	"bowstring/flight/peer"
	"bowstring/schema"
)

// Cluster says what a server is in its cluster.
type Cluster struct {
	// Name is the cluster's, and Node this node's.
	Name, Node string
	// Address is where others reach it, as HOST:PORT. nil, or "": it is not known. A node that looks for another
	// address is not let in.
	Address func() string
	// Keys are what the nodes know each other by: whoever has one reads any blob whose
	// key it knows, without being asked for rules. No key lets anybody in where there are
	// neither rules nor callers that are to be known, and else nobody.
	Keys *peer.Keys
	// Protocol is the only one that is spoken with other nodes; 0 for those of this program.
	Protocol int
	// Met is told the name of each node that has called and was let in; nil for nobody. It must not block.
	Met func(node string)
	// Egress counts what is sent to other nodes, and bounds it. Default: nothing is bounded.
	Egress *admission.Egress
	// WarmOthers has each other node warm its part of a request, as this one does; nil if there is no way to. It calls
	// progress, one call at a time, with what a node says, or why it says nothing more, and returns when all have
	// ended.
	WarmOthers func(ctx context.Context, request []byte, tenant string,
		progress func(node string, said []byte, err error))
}

const (
	lendMethod = "/" + peer.Service + "/" + peer.Method
	warmMethod = "/" + peer.Service + "/" + peer.WarmMethod
	// lendBytes and lendAnswers are how much goes into one message, of what is there.
	lendBytes   = 1 << 20
	lendAnswers = 256
	// thereEvery is how often a node that waits for answers is told that this one is there, while there are none: who
	// says nothing is taken for gone.
	thereEvery = 100 * time.Millisecond
	// mostUnsent is how many answers wait to be sent at most. Blobs are bounded by their memory; this bounds what a
	// node takes that asks and asks for what it does not get, and reads nothing.
	mostUnsent = 4096
)

// lendService describes the service by which other nodes read blobs.
var lendService = grpc.ServiceDesc{
	ServiceName: peer.Service,
	HandlerType: (*interface {
		lend(grpc.ServerStream) error
		warmFor(grpc.ServerStream) error
	})(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: peer.Method, ServerStreams: true, ClientStreams: true,
		Handler: func(srv any, ss grpc.ServerStream) error { return srv.(*Server).lend(ss) },
	}, {
		StreamName: peer.WarmMethod, ServerStreams: true, ClientStreams: true,
		Handler: func(srv any, ss grpc.ServerStream) error { return srv.(*Server).warmFor(ss) },
	}},
}

// lend serves another node. What it asks for is read as streams of its tenants
// would be, and sent in whatever order it comes.
func (s *Server) lend(ss grpc.ServerStream) error {
	hello, stopped, err := s.meet(ss, lendMethod)
	if err != nil {
		return err
	}
	defer stopped()
	if met := s.opts.Cluster.Met; met != nil {
		met(hello.Node)
	}
	ctx, stop := context.WithCancelCause(ss.Context())
	defer stop(nil)
	l := &lending{
		server: s, node: hello.Node, zone: hello.Zone,
		ss: ss, lent: s.lent.to(hello.Node), ready: make(chan struct{}, 1), sent: make(chan struct{}, 1),
		doing: make(chan []fetch.Progress, 1),
	}
	borrower := s.source.Nodes().Borrow(l.answered)
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
	f := s.source.Nodes().Follow()
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

	ss    grpc.ServerStream
	lent  *lentTo
	ready chan struct{}         // told when there is something to send
	sent  chan struct{}         // told when there is less
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
		if len(what) > 0 && what[0] == peer.KindProgress {
			var list []fetch.Progress
			if err := json.Unmarshal(what[1:], &list); err != nil {
				return &schema.FieldError{Field: "progress", Got: fmt.Sprintf("%d bytes", len(what)),
					Want: "a list of streams as JSON"}
			}
			select {
			case older := <-l.doing:
				keepTickets(list, older)
			default:
			}
			l.doing <- list // there is room: nobody else sends
			continue
		}
		err := peer.ParseAsks(what, func(a peer.Ask) error {
			if err := l.admit(ctx); err != nil {
				return err
			}
			loan := fetch.Loan{ID: a.ID, Tenant: a.Tenant, Ref: a.Ref, Snapshot: a.Snapshot, Position: a.Position,
				Onward: a.Onward, Held: a.Held}
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

// admit counts an ask in, once there is room for its answer.
func (l *lending) admit(ctx context.Context) error {
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

// waits reports whether the other node waits for answers.
func (l *lending) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waited > 0
}
