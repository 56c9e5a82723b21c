package flight

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc/codes"

	"bowstring/fetch"
	"bowstring/flight/audit"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// catalog is what there is for the caller of a call, whose context ctx is.
func (s *Server) catalog(ctx context.Context) *catalog.Catalog {
	return s.source.For(fetch.CallerFrom(ctx), audited{s, callFrom(ctx)})
}

// audited is a call as its catalog sees it: its actions are recorded in the audit log,
// and its rights are registered for callers that list running streams.
type audited struct {
	server *Server
	call   *call // nil where an action is run by itself
}

// Note implements catalog.Call.
func (a audited) Note(what catalog.Access) {
	if a.call != nil {
		a.call.registry.note(a.call, what)
	}
}

// Access implements catalog.Call.
func (a audited) Access() catalog.Access {
	if a.call == nil {
		return catalog.Access{}
	}
	return a.call.registry.accessOf(a.call)
}

// BeginRead implements catalog.Call, once for a call. A server that records it on stable storage, and cannot, lets nothing
// be read.
func (a audited) BeginRead(ctx context.Context) error {
	s, c := a.server, a.call
	if s.opts.Audit == nil || c == nil || !s.calls.beginsRead(c) {
		return nil
	}
	var err error
	for _, e := range c.eachSource(s.readEvent(ctx, c, audit.Begin)) {
		if err = s.opts.Audit.Begin(ctx, e); err != nil {
			break
		}
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	s.log.LogAttrs(ctx, slog.LevelError, "the audit log cannot be written", slog.Any("error", err))
	return fmt.Errorf("%w: the server cannot record the read in its audit log; nothing was read", schema.ErrUnavailable)
}

// beginsRead reports whether a call was let read, which is not on record yet, and notes that it is.
func (r *registry) beginsRead(c *call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.reads || !reads(&c.access, c) {
		return false
	}
	c.reads = true
	return true
}

// reads reports whether it is certain that a call reads: of an upload, the snapshot is on record.
func reads(a *catalog.Access, c *call) bool {
	return !a.Refused && !a.Early && a.Right == policy.Read && !strings.HasSuffix(c.method, "/DoPut")
}

// readEvent is that of a call that was let read.
func (s *Server) readEvent(ctx context.Context, c *call, phase string) audit.Event {
	a := s.calls.accessOf(c)
	e := s.event(ctx, audit.Read)
	e.Phase, e.Dataset, e.Snapshot, e.Plan = phase, a.Dataset, a.Snapshot, a.Plan
	if a.Decision.Rule != nil {
		e.Rule = a.Decision.Rule.String()
	}
	return e
}

// mistaken notes that the plan that a call serves is not of the snapshot that was asked for.
func mistaken(ctx context.Context) {
	if c := callFrom(ctx); c != nil {
		c.registry.unname(c)
	}
}

// Record implements catalog.Call. The change is in the audit log, on stable storage,
// before it begins and before the caller gets its result.
func (a audited) Record(ctx context.Context, c catalog.Change, do func(*catalog.Change) error) error {
	s, log := a.server, a.server.opts.Audit
	if log == nil {
		return do(&c)
	}
	event := s.event(ctx, c.Event)
	event.Dataset, event.Snapshot, event.Tag, event.Plan, event.Rule, event.Phase = c.Dataset, c.Snapshot, c.Tag, c.Plan,
		c.Rule, audit.Begin
	event.Run = c.Run
	if err := log.Write(event); err != nil {
		s.log.LogAttrs(ctx, slog.LevelError, "the audit log cannot be written", slog.Any("error", err))
		return fmt.Errorf("%w: the server cannot record in its audit log what it does; nothing was done",
			schema.ErrUnavailable)
	}
	err := do(&c)
	event.Phase, event.Code = audit.Done, codes.OK.String()
	if err != nil {
		event.Phase, event.Code = audit.Failed, statusOf(err).Code().String()
	}
	event.Dataset, event.Snapshot, event.Rows, event.Bytes, event.Count = c.Dataset, c.Snapshot, c.Rows, c.Bytes,
		c.Count
	event.Step = c.Step
	if failed := log.Write(event); failed != nil {
		s.log.LogAttrs(ctx, slog.LevelError, "the audit log cannot be written", slog.Any("error", failed))
		if err == nil {
			return fmt.Errorf("%w: it is done, and the server could not record so in its audit log",
				schema.ErrUnavailable)
		}
	}
	return err
}

// event is one of a call.
func (s *Server) event(ctx context.Context, what string) audit.Event {
	e := audit.Event{Event: what}
	caller := fetch.CallerFrom(ctx)
	e.Principal, e.Tenant, e.Trace = caller.Principal, caller.Tenant, caller.Trace
	if c := callFrom(ctx); c != nil {
		e.Method, e.Call, e.Peer = c.method[strings.LastIndexByte(c.method, '/')+1:], c.id, c.peer
		if action := s.calls.actionOf(c); action != "" {
			e.Method += "/" + action
		}
	}
	return e
}

// auditCall records what a call that has ended has read, or that it was refused. Its
// changes were recorded when they were made.
func (s *Server) auditCall(ctx context.Context, c *call, code codes.Code) {
	if s.opts.Audit == nil {
		return
	}
	a := s.calls.accessOf(c)
	if !a.Refused && !reads(&a, c) { // nothing was sent
		return
	}
	phase := audit.Done
	if code != codes.OK {
		phase = audit.Failed
	}
	e := s.readEvent(ctx, c, phase)
	if a.Refused {
		e.Event, e.Phase = audit.Deny, ""
	}
	e.Rows, e.Bytes, e.Code = c.rows.Load(), c.bytes.Load(), code.String()
	for _, e := range c.eachSource(e) {
		s.opts.Audit.Read(e)
	}
}
