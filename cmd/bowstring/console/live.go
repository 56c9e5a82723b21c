package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"
)

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
	last, told := (*moment)(nil), false
	for {
		m, changed := c.sampler.current()
		if m != nil && m != last && time.Since(m.after.At) < 5*c.opts.Every {
			data, all, err := m.encoded(s.visitor)
			if err != nil {
				c.opts.Logger.ErrorContext(r.Context(), "the console cannot show what runs", "error", err)
				return
			}
			if all && !told {
				told = true
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
		if !c.still(s) {
			send("end", []byte("{}"))
			return
		}
	}
}
