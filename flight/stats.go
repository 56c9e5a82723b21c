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
	Streams []StreamInfo `json:"streams"` // that run, in the order they began
	Tenants []TenantInfo `json:"tenants"` // with recent calls, by name, and last what all others did
	Scale   any          `json:"spill_scale,omitempty"`
	// Objects is what was asked of buckets, by bucket; left out where nothing was.
	Objects []object.Usage `json:"objects,omitempty"`
	// Shm is of memory shared with clients on this node; left out where there is none.
	Shm *shm.Stats `json:"shm,omitempty"`
	// that it is a node of: its name, the nodes that this one knows of
	Cluster any `json:"cluster,omitempty"`
}

// ServerStats are of the server itself.
type ServerStats struct {
	Started  time.Time `json:"started"`
	Draining bool      `json:"draining"`
	totals
}

// Limits are those of Options that clients meet.
type Limits struct {
	MaxStreams      int `json:"max_streams"`
	MaxRequestBytes int `json:"max_request_bytes"`
	MaxMessageBytes int `json:"max_message_bytes"`
	MaxEndpoints    int `json:"max_endpoints"`
	ExchangeDepth   int `json:"exchange_depth"`
}

// totals sum up calls, those that ended and those that run.
type totals struct {
	Calls   int64 `json:"calls"`   // of any method
	Streams int64 `json:"streams"` // DoGet, DoPut and DoExchange
	Rows    int64 `json:"rows"`
	Bytes   int64 `json:"bytes"`
	// StreamNanos is how long DoGet and DoExchange have run, summed up over them:
	// what Wait is a part of.
	StreamNanos int64     `json:"stream_ns"`
	Wait        WaitNanos `json:"wait_ns"`
	Faults      int64     `json:"faults"` // samples that could not be read, in streams that went on
}

// WaitNanos say where the time of batches went, in nanoseconds, by the kinds of
// waitMetadata.
type WaitNanos struct {
	Store    int64 `json:"store"`
	Spill    int64 `json:"spill"`
	Peer     int64 `json:"peer"`
	Window   int64 `json:"window"`
	Encode   int64 `json:"encode"`
	Consumer int64 `json:"consumer"`
	// Operators is how long streams waited for cells that were being made.
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
	// ProcessorNanos is the CPU time that operators took for it.
	ProcessorNanos int64 `json:"processor_ns,omitempty"`
}

// TenantInfo is what was done on an account.
type TenantInfo struct {
	Tenant  string `json:"tenant"`           // "" if the caller named none, or for all others
	Others  bool   `json:"others,omitempty"` // it stands for tenants that are not listed
	Streams int    `json:"streams"`          // that run
	Calls   int64  `json:"calls"`
	Rows    int64  `json:"rows"`
	Bytes   int64  `json:"bytes"`
	// StoreBytes were read from the store for it, StreamNanos is how long its streams ran,
	// summed up, and Refused how many streams were refused at its ceiling.
	StoreBytes  int64 `json:"store_bytes"`
	StreamNanos int64 `json:"stream_ns"`
	Refused     int64 `json:"refused"`
	// ProcessorNanos is the CPU time that operators took for it.
	ProcessorNanos int64 `json:"processor_ns"`
}

// waits sums up where the time of a call's batches went, in nanoseconds, by the
// kinds of waitMetadata; and the samples that could not be read.
type waits struct {
	store, spill, peer, window, encode, consumer, operators, faults atomic.Int64
}

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

// add counts a call in; its registry's mutex is held.
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
	maxTenants = 64
	tenantIdle = time.Hour
)

// tenants counts by tenant, and the others together. It is guarded by registry.mu.
type tenants struct {
	named  map[string]*tenantCalls
	others TenantInfo
	full   time.Time // until then no place becomes free
}

type tenantCalls struct {
	TenantInfo
	last time.Time // when a call ended
}

// ended counts a call that ended.
func (t *tenants) ended(c *call, now time.Time) { t.of(c.caller.Tenant, now).add(c) }

// of returns the counters of a tenant that did something now: its own if there is a place, or else those of the others.
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

// makeRoom adds the tenant that made no call for longest to the others, if that is long enough, and reports whether it
// did.
func (t *tenants) makeRoom(now time.Time) bool {
	if now.Before(t.full) { // a flood of names costs no search each
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

// list is all tenants, with the calls that run.
func (t *tenants) list(running map[*call]struct{}) []TenantInfo {
	sums, others := map[string]*TenantInfo{}, t.others
	others.Others = true
	for name, n := range t.named {
		one := n.TenantInfo
		sums[name] = &one
	}
	for c := range running {
		if !c.streamed {
			continue // it may not have said yet who it is
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

// snapshot returns the running streams that visible accepts, in the order they began; the
// sums over all running calls, and if all is set over ended ones, too; the tenants if all
// is set; and whether a drain is on.
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
		if !all && !c.streaming || !visible(c) { // whose caller may not be known yet
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

// Stats returns the counters of all callers. It waits for no stream. It is for who runs
// the server; callers get what the rules let them see.
func (s *Server) Stats() Stats {
	stored, engine := s.source.Counters()
	return s.statsOf(stored, engine, func(*call) bool { return true }, true)
}

// statsOf returns the counters of the calls that visible accepts, and of all calls if all
// is set.
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

// Draining reports whether the server takes no new calls any more.
func (s *Server) Draining() bool { return s.draining.Err() != nil }

// stats is the action.
func (s actionHandler) stats(ctx context.Context, b []byte, send func([]byte) error) error {
	if err := body(b, &struct{}{}); err != nil {
		return err
	}
	cat := s.catalog(ctx)
	stored, engine := cat.Counters()
	return sendJSON(send, s.statsOf(stored, engine, knows(cat), cat.SeesAll()))
}

// Status is Stats at a moment, taken once for several viewers: each sees the part that
// the rules allow it at that time. It is immutable.
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

// StreamMore is what is known of a running stream beside StreamInfo.
type StreamMore struct {
	// Dataset is the one that the rules were asked about for it, "" before.
	Dataset string
	// Sending is how long the connection of the stream has had bytes to send that its
	// peer's machine had not confirmed, and Held for how long of that the peer had no
	// room for them. Streams of one connection share it. Both are zero if the system does
	// not report them.
	Sending, Held time.Duration
}

// VisibleStatus is the part of a Status that a viewer may see. Its slices and maps are
// not changed.
type VisibleStatus struct {
	At time.Time
	// All says that the counters are those of the whole server. Otherwise they are those
	// of the viewer's streams, and the engine's and the store's are zero.
	All bool
	Stats
	More []StreamMore // of Streams, in their order
}

// Status takes a Status of the server. It waits for no stream.
func (s *Server) Status() *Status {
	l := &Status{At: time.Now(), stats: s.Stats()}
	l.stats.Streams, l.calls = s.calls.running(l.stats.Streams)
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

// running drops ended streams from a list, and returns what else is known of the others.
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

// All returns everything. It is for the operator of the server.
func (l *Status) All() VisibleStatus {
	sight := VisibleStatus{At: l.At, All: true, Stats: l.stats, More: make([]StreamMore, len(l.calls))}
	for i := range l.calls {
		sight.More[i] = l.calls[i].more
	}
	return sight
}

// Visible returns the part of a Status that the viewer may see by the rules that hold
// now: all of it with the right admin on the server, and otherwise its own streams and
// those on datasets on which it has that right, as the action stats would show it.
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
