package flight

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc/codes"

	"bowstring/fetch"
	"bowstring/flight/audit"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// access is what a call has been let do, as far as one dataset goes: the last one, if
// there were several.
type access struct {
	dataset  string
	snapshot int64
	plan     string
	group    string // what is the same in the plans of all epochs
	right    policy.Right
	decision policy.Decision
	refused  bool // it was not let do it
	early    bool // and it is not certain yet that it is of the snapshot that was asked for
}

// used notes what the caller has been let do, for the audit log, and for others who ask
// for running streams.
func used(ctx context.Context, a access) {
	if c := callFrom(ctx); c != nil {
		c.registry.note(c, a)
	}
}

// certain notes that what the caller has been let do is what was asked for.
func certain(ctx context.Context) {
	if c := callFrom(ctx); c != nil {
		a := c.registry.accessOf(c)
		a.early = false
		c.registry.note(c, a)
	}
}

// beginRead records that the caller is about to be told something of rows, once for a call. A server that records it on
// stable storage, and cannot, lets nothing be read.
func (s *Server) beginRead(ctx context.Context) error {
	c := callFrom(ctx)
	if s.opts.Audit == nil || c == nil || !s.calls.beginsRead(c) {
		return nil
	}
	err := s.opts.Audit.Begin(ctx, s.readEvent(ctx, c, audit.Begin))
	if err == nil || ctx.Err() != nil {
		return err
	}
	s.log.LogAttrs(ctx, slog.LevelError, "the audit log cannot be written", slog.Any("error", err))
	return fmt.Errorf("%w: the server cannot record in its audit log who reads; nothing was read", schema.ErrUnavailable)
}

// beginsRead reports whether a call was let read, which is not on record yet, and notes that it is.
func (r *registry) beginsRead(c *call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.reads || !c.access.reads(c) {
		return false
	}
	c.reads = true
	return true
}

// reads reports whether it is certain that a call reads: of an upload, the snapshot is on record.
func (a *access) reads(c *call) bool {
	return !a.refused && !a.early && a.right == policy.Read && !strings.HasSuffix(c.method, "/DoPut")
}

// readEvent is that of a call that was let read.
func (s *Server) readEvent(ctx context.Context, c *call, phase string) audit.Event {
	a := s.calls.accessOf(c)
	e := s.event(ctx, audit.Read)
	e.Phase, e.Dataset, e.Snapshot, e.Plan = phase, a.dataset, a.snapshot, a.plan
	if a.decision.Rule != nil {
		e.Rule = a.decision.Rule.String()
	}
	return e
}

// mistaken notes that the plan that a call serves is not of the snapshot that was asked for.
func mistaken(ctx context.Context) {
	if c := callFrom(ctx); c != nil {
		c.registry.unname(c)
	}
}

// denied notes that the rules refused a call, and returns the error.
func (s *Server) denied(ctx context.Context, dataset string, err error) error {
	if s.rules() != nil {
		used(ctx, access{dataset: dataset, refused: true})
	}
	return err
}

const (
	auditWrite   = audit.Write
	auditAlter   = audit.Alter
	auditSelect  = audit.Select
	auditDrop    = audit.Drop
	auditTag     = audit.Tag
	auditUntag   = audit.Untag
	auditCollect = audit.Collect
	auditCancel  = audit.Cancel
	auditMeasure = audit.Measure
)

// change is something that a call is about to change, and what became of it.
type change struct {
	event       string
	dataset     string
	snapshot    int64
	tag         string
	plan        string
	rows, bytes int64
	count       int64
}

// audited does something that changes what there is. It is in the audit log, on stable
// storage, before it is begun and before the caller is told that it is done: if it cannot
// be recorded, it is not begun, or fails after all.
func (s *Server) audited(ctx context.Context, c change, do func(*change) error) error {
	log := s.opts.Audit
	if log == nil {
		return do(&c)
	}
	event := s.event(ctx, c.event)
	event.Dataset, event.Snapshot, event.Tag, event.Plan, event.Phase = c.dataset, c.snapshot, c.tag, c.plan,
		audit.Begin
	if d := s.decide(ctx, c.dataset); d.Rule != nil {
		event.Rule = d.Rule.String()
	}
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
	event.Dataset, event.Snapshot, event.Rows, event.Bytes, event.Count = c.dataset, c.snapshot, c.rows, c.bytes,
		c.count
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
		e.Door, e.Call, e.Peer = c.method[strings.LastIndexByte(c.method, '/')+1:], c.id, c.peer
		if action := s.calls.actionOf(c); action != "" {
			e.Door += "/" + action
		}
	}
	return e
}

// auditCall records what a call that has ended has read, or that it was refused. What it
// has changed was recorded when it was done.
func (s *Server) auditCall(ctx context.Context, c *call, code codes.Code) {
	if s.opts.Audit == nil {
		return
	}
	a := s.calls.accessOf(c)
	if !a.refused && !a.reads(c) { // nothing was sent
		return
	}
	phase := audit.Done
	if code != codes.OK {
		phase = audit.Failed
	}
	e := s.readEvent(ctx, c, phase)
	if a.refused {
		e.Event, e.Phase = audit.Deny, ""
	}
	e.Rows, e.Bytes, e.Code = c.rows.Load(), c.bytes.Load(), code.String()
	s.opts.Audit.Read(e)
}
