package flight

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/flight/catalog"
	"bowstring/flight/shm"
	"bowstring/flight/wire"
)

// Stats are a server's counters since it was made, and what runs now.
type Stats struct {
	Server  ServerStats  `json:"server"`
	Store   store.Stats  `json:"store"`
	Engine  fetch.Stats  `json:"engine"`
	Limits  Limits       `json:"limits"`
	Streams []StreamInfo `json:"streams"` // running streams, oldest first
	Tenants []TenantInfo `json:"tenants"` // tenants with recent calls by name; the last entry sums the others
	Scale   any          `json:"spill_scale,omitempty"`
	// Objects counts the requests to each bucket. It is omitted if there were none.
	Objects []object.Usage `json:"objects,omitempty"`
	// Shm describes the memory shared with clients on this node. It is omitted if there is
	// none.
	Shm *shm.Stats `json:"shm,omitempty"`
	// Cluster is the state of the node's cluster: its name and the known nodes.
	Cluster any `json:"cluster,omitempty"`
}

// ServerStats are the counters of the server itself.
type ServerStats struct {
	Started  time.Time `json:"started"`
	Draining bool      `json:"draining"`
	totals
}

// Limits are the fields of Options that clients can exceed.
type Limits struct {
	MaxStreams      int `json:"max_streams"`
	MaxRequestBytes int `json:"max_request_bytes"`
	MaxMessageBytes int `json:"max_message_bytes"`
	MaxEndpoints    int `json:"max_endpoints"`
	ExchangeDepth   int `json:"exchange_depth"`
}

// totals sums calls, both ended and running ones. It is guarded by registry.mu.
type totals struct {
	Calls   int64 `json:"calls"`   // of any method
	Streams int64 `json:"streams"` // DoGet, DoPut and DoExchange
	Rows    int64 `json:"rows"`
	Bytes   int64 `json:"bytes"`
	// StreamNanos is the total running time of DoGet and DoExchange. Wait is a part of it.
	StreamNanos int64     `json:"stream_ns"`
	Wait        WaitNanos `json:"wait_ns"`
	Faults      int64     `json:"faults"` // samples that could not be read in streams that continued
}

// WaitNanos are the waiting times of batches in nanoseconds, by the kinds of waitMetadata.
type WaitNanos struct {
	Store    int64 `json:"store"`
	Spill    int64 `json:"spill"`
	Peer     int64 `json:"peer"`
	Window   int64 `json:"window"`
	Encode   int64 `json:"encode"`
	Consumer int64 `json:"consumer"`
	// Operators is how long streams waited for cells that operators were computing.
	Operators int64 `json:"operators"`
}

// StreamInfo describes a running stream.
type StreamInfo struct {
	ID      uint64    `json:"id"`
	Kind    string    `json:"kind"` // "DoGet", "DoPut", "DoExchange" or "warm"
	Plan    string    `json:"plan,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Peer    string    `json:"peer"`
	Started time.Time `json:"started"`
	Rows    int64     `json:"rows"`
	Bytes   int64     `json:"bytes"`
	Wait    WaitNanos `json:"wait_ns"`
	// ProcessorNanos is the CPU time of the stream's operators.
	ProcessorNanos int64 `json:"processor_ns,omitempty"`
}

// TenantInfo has the counters of one tenant, or of all tenants that have no own entry.
type TenantInfo struct {
	Tenant  string `json:"tenant"`           // "" if the caller named none, or for all others
	Others  bool   `json:"others,omitempty"` // the sum of the tenants that are not listed
	Streams int    `json:"streams"`          // running now
	Calls   int64  `json:"calls"`
	Rows    int64  `json:"rows"`
	Bytes   int64  `json:"bytes"`
	// StoreBytes were read from the store for the tenant. StreamNanos is the total running
	// time of its streams. Refused counts the streams that were refused at its limit.
	StoreBytes  int64 `json:"store_bytes"`
	StreamNanos int64 `json:"stream_ns"`
	Refused     int64 `json:"refused"`
	// ProcessorNanos is the CPU time of the tenant's operators.
	ProcessorNanos int64 `json:"processor_ns"`
}

// waits sums the waiting times of a call's batches in nanoseconds, by the kinds of
// waitMetadata, and the samples that could not be read. Streams add without a lock.
type waits struct {
	store, spill, peer, window, encode, consumer, operators, faults atomic.Int64
}

// nanos returns the times. They are not from one instant, because streams keep adding.
func (w *waits) nanos() WaitNanos {
	return WaitNanos{w.store.Load(), w.spill.Load(), w.peer.Load(), w.window.Load(), w.encode.Load(), w.consumer.Load(),
		w.operators.Load()}
}

func (w *WaitNanos) add(o WaitNanos) {
	w.Store += o.Store
	w.Spill += o.Spill
	w.Peer += o.Peer
	w.Window += o.Window
	w.Encode += o.Encode
	w.Consumer += o.Consumer
	w.Operators += o.Operators
}

// add adds a call. The registry's mutex is held.
func (t *totals) add(c *call, now time.Time) {
	t.Calls++
	t.Rows += c.rows.Load()
	t.Bytes += c.bytes.Load()
	t.Wait.add(c.waits.nanos())
	t.Faults += c.waits.faults.Load()
	if c.streamed && (c.kind == "DoGet" || c.kind == "DoExchange") {
		t.StreamNanos += int64(now.Sub(c.started))
	}
}

// maxTenants is how many tenants are counted by name, and tenantIdle how long one of them has made no call when another
// one may take its place. Clients may name as many tenants as they like: so few new names appear, in metrics as well,
// and those that are there stay.
const (
	// maxTenants bounds the tenants that are counted by name. A tenant without a call for
	// tenantIdle may be replaced by another. Clients may invent any number of names, and
	// each name becomes a label of metrics. The two bounds keep the number of labels small
	// and the labels stable.
	maxTenants = 64
	tenantIdle = time.Hour
)

// tenants counts by tenant, and all further tenants together. It is guarded by registry.mu.
type tenants struct {
	named  map[string]*tenantCalls
	others TenantInfo
	full   time.Time // no place becomes free before this time
}

type tenantCalls struct {
	TenantInfo
	last time.Time // when a call ended
}

// ended counts an ended call.
func (t *tenants) ended(c *call, now time.Time) { t.of(c.caller.Tenant, now).add(c) }

// of returns the counters of a tenant that is active now. If there is no place for the
// tenant, these are the counters of the others.
func (t *tenants) of(name string, now time.Time) *TenantInfo {
	n := t.named[name]
	if n == nil && (len(t.named) < maxTenants || t.makeRoom(now)) {
		if t.named == nil {
			t.named = map[string]*tenantCalls{}
		}
		n = &tenantCalls{TenantInfo: TenantInfo{Tenant: name}}
		t.named[name] = n
	}
	if n == nil {
		return &t.others
	}
	n.last = now
	return &n.TenantInfo
}

// add adds a call's counters. The registry's mutex is held.
func (i *TenantInfo) add(c *call) {
	i.Calls++
	i.Rows += c.rows.Load()
	i.Bytes += c.bytes.Load()
	i.StoreBytes += c.stored.Load()
	i.ProcessorNanos += c.processor.Load()
	if c.streamed {
		i.StreamNanos += int64(time.Since(c.started))
	}
}

// makeRoom moves the tenant with the oldest call to the others, if that call is older than
// tenantIdle. It reports whether it did. The sum of all counters stays the same.
func (t *tenants) makeRoom(now time.Time) bool {
	if now.Before(t.full) { // many new names must not cost a search each
		return false
	}
	var oldest *tenantCalls
	for _, n := range t.named {
		if oldest == nil || n.last.Before(oldest.last) {
			oldest = n
		}
	}
	if free := oldest.last.Add(tenantIdle); now.Before(free) {
		t.full = free
		return false
	}
	delete(t.named, oldest.Tenant)
	t.others.Calls += oldest.Calls
	t.others.Rows += oldest.Rows
	t.others.Bytes += oldest.Bytes
	t.others.StoreBytes += oldest.StoreBytes
	t.others.ProcessorNanos += oldest.ProcessorNanos
	t.others.StreamNanos += oldest.StreamNanos
	t.others.Refused += oldest.Refused
	return true
}

// list returns all tenants with their running calls included.
func (t *tenants) list(running map[*call]struct{}) []TenantInfo {
	sums, others := map[string]*TenantInfo{}, t.others
	others.Others = true
	for name, n := range t.named {
		one := n.TenantInfo
		sums[name] = &one
	}
	for c := range running {
		if !c.streamed {
			continue // its caller may not be authenticated yet
		}
		to := sums[c.caller.Tenant]
		if to == nil && len(sums) < maxTenants {
			to = &TenantInfo{Tenant: c.caller.Tenant}
			sums[c.caller.Tenant] = to
		} else if to == nil {
			to = &others
		}
		to.add(c)
		if c.streaming {
			to.Streams++
		}
	}
	list := make([]TenantInfo, 0, len(sums)+1)
	for _, one := range sums {
		list = append(list, *one)
	}
	slices.SortFunc(list, func(a, b TenantInfo) int { return cmp.Compare(a.Tenant, b.Tenant) })
	if others.Calls > 0 || others.Streams > 0 || others.Refused > 0 {
		list = append(list, others)
	}
	return list
}

// snapshot returns the running streams that visible accepts, oldest first, and the sums
// over the running calls that visible accepts. If all is set, the sums include ended calls,
// and list has the tenants. draining reports whether a drain is on.
func (r *registry) snapshot(visible func(*call) bool,
	all bool) (running []StreamInfo, sums totals, list []TenantInfo, draining bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list = []TenantInfo{}
	if all {
		sums, list = r.totals, r.tenants.list(r.calls)
	}
	running = []StreamInfo{}
	now := time.Now()
	for c := range r.calls {
		if !all && !c.streaming || !visible(c) { // without a stream its caller may be unknown yet
			continue
		}
		if sums.add(c, now); !all {
			sums.Streams++
		}
		if c.streaming {
			running = append(running, StreamInfo{
				ID: c.id, Kind: c.kind, Plan: c.plan, Tenant: c.caller.Tenant, Peer: c.peer, Started: c.started.UTC(),
				Rows: c.rows.Load(), Bytes: c.bytes.Load(), Wait: c.waits.nanos(),
				ProcessorNanos: c.processor.Load(),
			})
		}
	}
	slices.SortFunc(running, func(a, b StreamInfo) int { return cmp.Compare(a.ID, b.ID) })
	return running, sums, list, r.draining != nil
}

// Stats returns the counters of all callers. It waits for no stream. It is for the operator
// of the server: callers get only what the rules permit.
func (s *Server) Stats() Stats {
	stored, engine := s.source.Counters()
	return s.statsOf(stored, engine, func(*call) bool { return true }, true)
}

// statsOf returns the counters of the calls that visible accepts, and of all calls if all
// is set. Without all, figures of the whole server are absent, because they reveal the work
// of other callers.
func (s *Server) statsOf(stored store.Stats, engine fetch.Stats, visible func(*call) bool, all bool) Stats {
	st := Stats{
		Store: stored, Engine: engine,
		Limits: Limits{s.opts.MaxStreams, s.opts.MaxRequestBytes, s.opts.MaxMessageBytes, s.opts.MaxEndpoints,
			s.opts.ExchangeDepth},
	}
	st.Server.Started = s.started.UTC()
	st.Streams, st.Server.totals, st.Tenants, st.Server.Draining = s.calls.snapshot(visible, all)
	if s.opts.Shm != nil && all {
		st.Shm = new(s.opts.Shm.Stats())
	}
	if s.opts.Requests != nil && all {
		st.Objects = s.opts.Requests.Usage()
	}
	if all {
		st.Cluster, st.Scale = s.opts.Node.Members(), s.opts.Node.SpillScale()
	}
	return st
}

// Draining reports whether the server refuses new calls because it is about to stop.
func (s *Server) Draining() bool { return s.draining.Err() != nil }

// stats implements the action.
func (s actionHandler) stats(ctx context.Context, b []byte, send func([]byte) error) error {
	if err := body(b, &struct{}{}); err != nil {
		return err
	}
	cat := s.catalog(ctx)
	stored, engine := cat.Counters()
	return sendJSON(send, s.statsOf(stored, engine, knows(cat), cat.SeesAll()))
}

// Status is Stats at one moment, taken once for several viewers. Each viewer sees the part
// that the rules permit at the time of viewing. It is immutable. Without it, every open
// page of the console would take the registry's mutex.
type Status struct {
	At    time.Time
	stats Stats
	calls []runningStream // of stats.Streams, in their order
}

// runningStream is what a Status needs of a stream to filter it for each viewer.
type runningStream struct {
	caller fetch.Caller
	conn   *wire.Conn // or nil
	access catalog.Access
	more   StreamMore
}

// StreamMore has the facts about a running stream that StreamInfo does not have.
type StreamMore struct {
	// Dataset is the one whose rules were checked for the stream, "" before the check.
	Dataset string
	// Sending is the time during which the connection had bytes that the client's machine
	// had not acknowledged. Held is the part of it during which the client had no room for
	// them. All streams of a connection have the same values. Both are 0 if the system does
	// not report them.
	Sending, Held time.Duration
}

// VisibleStatus is the part of a Status that a viewer may see. Its slices and maps are
// shared: the caller must not change them.
type VisibleStatus struct {
	At time.Time
	// All is set if the counters are those of the whole server. Otherwise they are those of
	// the visible streams, and the counters of the engine and the store are zero.
	All bool
	Stats
	More []StreamMore // of Streams, in their order
}

// Status returns the current Status. It waits for no stream.
func (s *Server) Status() *Status {
	l := &Status{At: time.Now(), stats: s.Stats()}
	l.stats.Streams, l.calls = s.calls.running(l.stats.Streams)
	// The times of a connection cost a system call. They are read after the registry's
	// mutex was released, and once for all streams of the connection.
	links := map[*wire.Conn]StreamMore{}
	for i := range l.calls {
		c := &l.calls[i]
		conn := c.conn
		if conn == nil {
			continue
		}
		times, ok := links[conn]
		if !ok {
			times.Sending, times.Held = conn.SendTimes()
			links[conn] = times
		}
		c.more.Sending, c.more.Held = times.Sending, times.Held
	}
	return l
}

// running removes ended streams from a list, and returns the further facts about the
// others.
func (r *registry) running(list []StreamInfo) ([]StreamInfo, []runningStream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	running := make(map[uint64]*call, len(list))
	for c := range r.calls {
		if c.streaming {
			running[c.id] = c
		}
	}
	list = slices.DeleteFunc(list, func(i StreamInfo) bool { return running[i.ID] == nil })
	found := make([]runningStream, len(list))
	for i := range list {
		c := running[list[i].ID]
		found[i] = runningStream{caller: c.caller, access: c.access, conn: c.conn,
			more: StreamMore{Dataset: strings.Join(c.access.Datasets(), "+")}}
	}
	return list, found
}

// All returns the whole Status. It is for the operator of the server.
func (l *Status) All() VisibleStatus {
	sight := VisibleStatus{At: l.At, All: true, Stats: l.stats, More: make([]StreamMore, len(l.calls))}
	for i := range l.calls {
		sight.More[i] = l.calls[i].more
	}
	return sight
}

// Visible returns the part of a Status that the viewer may see by the current rules. With
// the right admin on the server that is all of it. Otherwise it is the viewer's own streams
// and those on datasets for which it has that right, as in the action stats.
func (v *Viewer) Visible(l *Status) VisibleStatus {
	cat := v.server.source.For(v.caller, nil)
	if cat.SeesAll() {
		return l.All()
	}
	knows := cat.Knows()
	sight := VisibleStatus{At: l.At,
		Stats: Stats{Limits: l.stats.Limits, Streams: []StreamInfo{}, Tenants: []TenantInfo{}}}
	sight.Server.Started, sight.Server.Draining = l.stats.Server.Started, l.stats.Server.Draining
	sight.Engine = catalog.NoStats()
	for i := range l.calls {
		c, s := &l.calls[i], &l.stats.Streams[i]
		if !knows(c.caller.Principal, &c.access) {
			continue
		}
		sight.Streams, sight.More = append(sight.Streams, *s), append(sight.More, c.more)
		t := &sight.Server.totals
		t.Calls++
		t.Streams++
		t.Rows += s.Rows
		t.Bytes += s.Bytes
		t.Wait.add(s.Wait)
		if s.Kind != "DoPut" {
			t.StreamNanos += int64(l.At.Sub(s.Started))
		}
	}
	return sight
}
