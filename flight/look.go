package flight

import (
	"slices"
	"time"

	"bowstring/fetch"
	"bowstring/flight/catalog"
	"bowstring/flight/wire"
)

// Look is what Stats says at a moment, taken once to be shown to several: each sees of it
// what the rules that hold then let him. It is immutable.
type Look struct {
	At    time.Time
	stats Stats
	calls []lookedAt // of stats.Streams, in their order
}

// lookedAt is a running stream.
type lookedAt struct {
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
	// room for them. Streams of one connection share it. Both are zero where the
	// system does not tell.
	Sending, Held time.Duration
}

// Sight is what somebody sees of a Look. Its slices and maps are not changed.
type Sight struct {
	At time.Time
	// All says that the counters are those of the whole server. Otherwise they are of
	// the visitor's streams, and the engine's and the store's are zero.
	All bool
	Stats
	More []StreamMore // of Streams, in their order
}

// Look takes a look at the server. It waits for no stream.
func (s *Server) Look() *Look {
	l := &Look{At: time.Now(), stats: s.Stats()}
	l.stats.Streams, l.calls = s.calls.look(l.stats.Streams)
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

// look returns of a list of streams those that still run, and what else is known of them.
func (r *registry) look(list []StreamInfo) ([]StreamInfo, []lookedAt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	running := make(map[uint64]*call, len(list))
	for c := range r.calls {
		if c.streaming {
			running[c.id] = c
		}
	}
	list = slices.DeleteFunc(list, func(i StreamInfo) bool { return running[i.ID] == nil })
	looked := make([]lookedAt, len(list))
	for i := range list {
		c := running[list[i].ID]
		looked[i] = lookedAt{caller: c.caller, access: c.access, conn: c.conn,
			more: StreamMore{Dataset: c.access.Dataset}}
	}
	return list, looked
}

// All is all that was seen. It is for who runs the server.
func (l *Look) All() Sight {
	sight := Sight{At: l.At, All: true, Stats: l.stats, More: make([]StreamMore, len(l.calls))}
	for i := range l.calls {
		sight.More[i] = l.calls[i].more
	}
	return sight
}

// Sees is what the visitor sees of a look, by the rules that hold now: all of it if he has
// the right admin to the server, and otherwise his own streams and those on datasets that
// he has it to, as the action stats would tell him.
func (v *Visitor) Sees(l *Look) Sight {
	cat := v.server.source.For(v.caller, nil)
	if cat.SeesAll() {
		return l.All()
	}
	knows := cat.Knows()
	sight := Sight{At: l.At, Stats: Stats{Limits: l.stats.Limits, Streams: []StreamInfo{}, Tenants: []TenantInfo{}}}
	sight.Server.Started, sight.Server.Draining = l.stats.Server.Started, l.stats.Server.Draining
	sight.Engine = catalog.NoStats()
	for i := range l.calls {
		c, s := &l.calls[i], &l.stats.Streams[i]
		if !knows(c.caller.Principal, c.access.Dataset) {
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
