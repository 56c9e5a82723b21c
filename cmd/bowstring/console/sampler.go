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
	// remembered is how many moments the chart goes back.
	remembered = 600
	// lingering is for how long sampling goes on without viewers, so that a viewer who
	// comes back sees the history.
	lingering = 10 * time.Minute
)

// moment is two samples of the statistics, one after the other, and what every viewer
// with full rights is sent. It is immutable.
type moment struct {
	before, after *flight.Status
	whole         *watch.View // of all of it; set before anybody else has the moment

	once sync.Once
	full []byte // see all
	err  error
}

// past is what the chart shows of a moment.
type past struct {
	At    int64   `json:"at"` // milliseconds since 1970
	Bytes float64 `json:"bytes_per_s"`
	Store float64 `json:"store_bytes_per_s"`
	Spill float64 `json:"spill_bytes_per_s"`
	Rows  float64 `json:"rows_per_s"`
	P99   int64   `json:"store_p99_us"`
}

// sampler reads the server's statistics, once for all viewers. It does so while there are
// any, and for a while after. Its goroutine ends with close.
type sampler struct {
	status func() *flight.Status
	every  time.Duration

	mu      sync.Mutex
	viewers int           // guarded by mu
	running bool          // guarded by mu
	closed  bool          // guarded by mu
	now     *moment       // or nil before there were two samples; guarded by mu
	changed chan struct{} // closed and replaced with now; guarded by mu
	was     []past        // guarded by mu
	done    chan struct{} // closed by close
	work    sync.WaitGroup
}

func newSampler(status func() *flight.Status, every time.Duration) *sampler {
	return &sampler{status: status, every: every, changed: make(chan struct{}), done: make(chan struct{})}
}

// enter counts a viewer in; leave counts him out.
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

// current is the last moment, nil if there is none yet, and what is closed when there is
// another.
func (s *sampler) current() (*moment, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.changed
}

// history is what was, in order, up to the last moment.
func (s *sampler) history() []past {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]past{}, s.was...)
}

func (s *sampler) run() {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	before, seen := s.status(), time.Now()
	// The first viewer is shown something at once; of a tenth of a second rates are known.
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

// publish makes a moment the last one, and reports whether there are viewers.
func (s *sampler) publish(m *moment) bool {
	v := m.view((*flight.Status).All)
	m.whole = v
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = m
	if v.Seconds > s.every.Seconds()/2 { // what the first moment has is no rate to remember
		s.was = append(s.was, past{v.At.UnixMilli(), v.BytesPerSec, v.StoreBytesPerS, v.SpillBytesPerS, v.RowsPerSec,
			v.StoreP99})
	}
	if len(s.was) > remembered {
		s.was = append(s.was[:0:0], s.was[len(s.was)-remembered:]...)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return s.viewers > 0
}

// rest stops sampling unless a viewer has come in the last moment.
func (s *sampler) rest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.viewers > 0 {
		return false
	}
	s.running, s.now, s.was = false, nil, nil
	return true
}

func (s *sampler) close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	s.mu.Unlock()
	s.work.Wait()
}

// view is the difference of the two samples, with what a viewer may see.
func (m *moment) view(sees func(*flight.Status) flight.VisibleStatus) *watch.View {
	a, b := sees(m.before), sees(m.after)
	return watch.Between("", &watch.Observation{At: a.At, Stats: a.Stats, More: a.More},
		&watch.Observation{At: b.At, Stats: b.Stats, More: b.More})
}

// sent is what the page is sent of a moment.
type sent struct {
	*watch.View
	All     bool      `json:"all"` // it is of the whole server
	Started time.Time `json:"started"`
	Calls   int64     `json:"calls"`
}

// encoded is what a viewer is sent of the moment, and whether that is all of it: that is
// made once for all who see all.
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

// eventTimeout is how long a viewer may take to read what it is sent.
const eventTimeout = 30 * time.Second

// live sends what runs, as server-sent events: "history" once to those who see all of the
// server, then "view" about every second, and "end" when the viewer has to sign in again.
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
		if !c.alive(s) {
			send("end", []byte("{}"))
			return
		}
	}
}
