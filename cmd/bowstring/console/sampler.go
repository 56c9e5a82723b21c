package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"bowstring/cmd/bowstring/watch"
	"bowstring/flight"
)

const (
	// remembered is how many moments the chart covers: ten minutes at one a second.
	remembered = 600
	// lingering is how long sampling continues without viewers. A viewer who reloads the
	// page finds the history.
	lingering = 10 * time.Minute
)

// moment is two successive samples of the statistics, and what viewers with full rights
// get of them. It is immutable once published, except for the result of once.
type moment struct {
	before, after *flight.Status
	// whole is the unrestricted view; it is set before the moment is published.
	whole *watch.View

	// once guards full and err, the encoding for viewers with full rights.
	once sync.Once
	full []byte
	err  error
}

// past is a point of the chart. Rates are means over one interval.
type past struct {
	At    int64   `json:"at"` // milliseconds since 1970
	Bytes float64 `json:"bytes_per_s"`
	Store float64 `json:"store_bytes_per_s"`
	Spill float64 `json:"spill_bytes_per_s"`
	Rows  float64 `json:"rows_per_s"`
	P99   int64   `json:"store_p99_us"`
}

// sampler reads the server's statistics, once for all viewers. Its goroutine runs while
// there are viewers, and for lingering after the last one. It ends with close. Without
// viewers the console costs the server nothing.
type sampler struct {
	status func() *flight.Status
	every  time.Duration

	mu      sync.Mutex
	viewers int           // guarded by mu
	running bool          // guarded by mu
	closed  bool          // guarded by mu
	now     *moment       // nil before the second sample; guarded by mu
	changed chan struct{} // closed and replaced with now; guarded by mu
	was     []past        // guarded by mu
	done    chan struct{} // closed by close
	work    sync.WaitGroup
}

func newSampler(status func() *flight.Status, every time.Duration) *sampler {
	return &sampler{status: status, every: every, changed: make(chan struct{}), done: make(chan struct{})}
}

// enter registers a viewer and starts sampling if necessary. The caller calls leave once.
func (s *sampler) enter() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.viewers++
	if !s.running && !s.closed {
		s.running = true
		s.work.Go(s.run)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.viewers--
	}
}

// current returns the last moment, nil before the first, and a channel that is closed
// when the next moment is published. A channel for each viewer would need a goroutine
// that serves slow ones.
func (s *sampler) current() (*moment, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.changed
}

// history returns a copy of the points of the chart, oldest first.
func (s *sampler) history() []past {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]past{}, s.was...)
}

// run samples until close, or until there have been no viewers for lingering.
func (s *sampler) run() {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	before, seen := s.status(), time.Now()
	// The first viewer gets a moment after a tenth of a second instead of a whole
	// interval. That is long enough for rates.
	first := time.NewTimer(min(s.every, 100*time.Millisecond))
	defer first.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-first.C:
		case <-tick.C:
		}
		m := &moment{before: before, after: s.status()}
		before = m.after
		if s.publish(m) {
			seen = time.Now()
		} else if time.Since(seen) > lingering && s.rest() {
			return
		}
	}
}

// publish makes m the current moment and reports whether there are viewers.
func (s *sampler) publish(m *moment) bool {
	v := m.view((*flight.Status).All)
	m.whole = v
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = m
	// The first moment covers too short a time for a point of the chart.
	if v.Seconds > s.every.Seconds()/2 {
		s.was = append(s.was, past{v.At.UnixMilli(), v.BytesPerSec, v.StoreBytesPerS, v.SpillBytesPerS, v.RowsPerSec,
			v.StoreP99})
	}
	// A new slice, so that the dropped points do not stay in memory.
	if len(s.was) > remembered {
		s.was = append(s.was[:0:0], s.was[len(s.was)-remembered:]...)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return s.viewers > 0
}

// rest ends sampling and forgets the history, unless a viewer has entered since the last
// moment. Both are decided under one lock: a viewer who enters afterwards starts a new
// goroutine.
func (s *sampler) rest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.viewers > 0 {
		return false
	}
	s.running, s.now, s.was = false, nil, nil
	return true
}

// close ends the goroutine and waits for it. It may be called twice.
func (s *sampler) close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	s.mu.Unlock()
	s.work.Wait()
}

// view computes the difference of the two samples, each reduced by sees to what a viewer
// may see.
func (m *moment) view(sees func(*flight.Status) flight.VisibleStatus) *watch.View {
	a, b := sees(m.before), sees(m.after)
	return watch.Between("", &watch.Observation{At: a.At, Stats: a.Stats, More: a.More},
		&watch.Observation{At: b.At, Stats: b.Stats, More: b.More})
}

// sent is the event "view" of a moment.
type sent struct {
	*watch.View
	// All says that the view covers the whole server, not only the viewer's own streams.
	All     bool      `json:"all"`
	Started time.Time `json:"started"`
	Calls   int64     `json:"calls"`
}

// encoded returns the event of the moment for a viewer, and whether it covers the whole
// server. All viewers with full rights share one encoding, so that a hundred open pages
// cost as much as one.
func (m *moment) encoded(v *flight.Viewer) (data []byte, all bool, err error) {
	sight := v.Visible(m.after)
	encode := func(view *watch.View) ([]byte, error) {
		return json.Marshal(sent{view, sight.All, sight.Server.Started, sight.Server.Calls})
	}
	if !sight.All {
		data, err = encode(m.view(v.Visible))
		return data, false, err
	}
	m.once.Do(func() { m.full, m.err = encode(m.whole) })
	return m.full, true, m.err
}

// eventTimeout is how long a viewer's connection may block a write before it is closed.
const eventTimeout = 30 * time.Second

// live sends the running streams as server-sent events. The event "history" comes once,
// for viewers who see the whole server. "view" comes about once a second, and "end" if
// the viewer must sign in again.
//
// A slow viewer skips moments: it takes the current one when its last write is done, and
// no queue grows.
func (c *Console) live(w http.ResponseWriter, r *http.Request) {
	s, why := c.viewer(r)
	if why != nil {
		answer(w, http.StatusUnauthorized, why)
		return
	}
	if !s.beginView() {
		fail(w, http.StatusTooManyRequests, "RESOURCE_EXHAUSTED", "too many pages of yours are open")
		return
	}
	defer s.endView()
	defer c.sampler.enter()()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	send := func(event string, data []byte) bool {
		if control.SetWriteDeadline(time.Now().Add(eventTimeout)) != nil {
			return false
		}
		var b bytes.Buffer
		b.WriteString("event: " + event + "\ndata: ")
		b.Write(data) // JSON has no line feeds
		b.WriteString("\n\n")
		_, err := w.Write(b.Bytes())
		return err == nil && control.Flush() == nil
	}
	last, announced := (*moment)(nil), false
	for {
		m, changed := c.sampler.current()
		// A moment older than five intervals does not show what runs now, and is skipped.
		if m != nil && m != last && time.Since(m.after.At) < 5*c.opts.Every {
			data, all, err := m.encoded(s.viewer)
			if err != nil {
				c.opts.Logger.ErrorContext(r.Context(), "the console cannot show what runs", "error", err)
				return
			}
			if all && !announced {
				announced = true
				if was, err := json.Marshal(c.sampler.history()); err == nil && !send("history", was) {
					return
				}
			}
			if !send("view", data) {
				return
			}
			last = m
		}
		select {
		case <-changed:
		case <-s.ended.Done():
			send("end", []byte("{}"))
			return
		case <-r.Context().Done():
			return
		case <-c.ctx.Done():
			return
		}
		// A session can end without an event: its time is up, or the token of operators
		// has changed.
		if !c.alive(s) {
			send("end", []byte("{}"))
			return
		}
	}
}
