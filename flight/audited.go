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

// catalog returns the catalog for the caller of the call that ctx belongs to. Handlers
// reach data only through it: it checks the rights, and it records what the call does.
func (s *Server) catalog(ctx context.Context) *catalog.Catalog {
	return s.source.For(fetch.CallerFrom(ctx), audited{s, callFrom(ctx)})
}

// audited is a call as its catalog sees it: its actions are recorded in the audit log,
// and its rights are registered for callers that list running streams.
type audited struct {
	server *Server
	// call is nil if an action runs outside of a call. Nothing is recorded then.
	call *call
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

// BeginRead implements catalog.Call. It writes the record once for each call, and before
// the first byte is read. If the audit log demands a record on stable storage and cannot
// write it, BeginRead fails with schema.ErrUnavailable: an unrecorded read would leave no
// trace.
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

// beginsRead reports whether the call has the right to read and its read is not on record
// yet. It marks the read as recorded in the same step, so that concurrent checks of one
// call write one record.
func (r *registry) beginsRead(c *call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.reads || !reads(&c.access, c) {
		return false
	}
	c.reads = true
	return true
}

// reads reports whether a call certainly reads. A call that was opened early may still turn
// out to use another snapshot. An upload is excluded, because its snapshot is on record.
func reads(a *catalog.Access, c *call) bool {
	return !a.Refused && !a.Early && a.Right == policy.Read && !strings.HasSuffix(c.method, "/DoPut")
}

// readEvent returns the audit event of a read, with the dataset and the rule from the
// call's last access check.
func (s *Server) readEvent(ctx context.Context, c *call, phase string) audit.Event {
	a := s.calls.accessOf(c)
	e := s.event(ctx, audit.Read)
	e.Phase, e.Dataset, e.Snapshot, e.Plan = phase, a.Dataset, a.Snapshot, a.Plan
	if a.Decision.Rule != nil {
		e.Rule = a.Decision.Rule.String()
	}
	return e
}

// mistaken removes the plan from the description of a call. The call was opened early, and
// its plan belongs to another snapshot than the request names.
func mistaken(ctx context.Context) {
	if c := callFrom(ctx); c != nil {
		c.registry.unname(c)
	}
}

// Record implements catalog.Call. It writes one event to stable storage before do runs, and
// one after it. If the first write fails, do does not run. If the second one fails, the
// change has happened and the caller gets schema.ErrUnavailable with a message that says
// so.
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

// event returns an audit event with the caller, the trace and the call that ctx belongs to.
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

// auditCall records what an ended call has read, or that it was refused. Changes are not
// recorded here: Record has written them when they were made.
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
	// A refusal has one event only. It has no phase, because nothing began.
	if a.Refused {
		e.Event, e.Phase = audit.Deny, ""
	}
	e.Rows, e.Bytes, e.Code = c.rows.Load(), c.bytes.Load(), code.String()
	for _, e := range c.eachSource(e) {
		s.opts.Audit.Read(e)
	}
}
