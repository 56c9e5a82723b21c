package prefetch

import (
	"testing"
	"time"

	"bowstring/fetch/read"
)

// TestWindowStart: the further away the store is, the larger is the initial window.
func TestWindowStart(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		path read.Path
		want int64
	}{
		{read.Path{}, 4 << 20},
		{read.Path{Latency: ms / 2, Limit: 1 << 30}, 4 << 20},
		{read.Path{Latency: 20 * ms}, 32 << 20},
		{read.Path{Latency: 75 * ms}, 32 << 20},
		{read.Path{Latency: 150 * ms}, 64 << 20},
		{read.Path{Latency: time.Second}, 64 << 20},
		{read.Path{Latency: 150 * ms, Limit: 90 << 20}, 90 << 20},
	} {
		var w window
		if w.init(time.Now(), c.path, 1<<30); w.size != c.want {
			t.Errorf("a stream over %+v holds %d bytes at first, want %d", c.path, w.size, c.want)
		}
		if w.init(time.Now(), c.path, 1<<20); w.size != 1<<20 {
			t.Errorf("a stream with a share of a mebibyte holds %d bytes at first", w.size)
		}
	}
}

// TestWindowGrows: while the arrived blobs are in the window, twice their bytes can be
// requested. So the bytes in flight double in a round trip.
func TestWindowGrows(t *testing.T) {
	const n = 100_000
	var w window
	now := time.Now()
	w.init(now, read.Path{Latency: 20 * time.Millisecond}, 1<<30)
	flight := w.size / n
	for range flight {
		w.completed(now, n, 0, true)
	}
	if room := w.size - flight*n; room < 2*flight*n {
		t.Errorf("after %d reads of %d bytes have come there is room for %d bytes, want twice as many", flight, n, room)
	}
	before := w.size
	if w.completed(now, n, 0, false); w.size != before {
		t.Errorf("a consumer that does not wait has the window grow by %d bytes", w.size-before)
	}
}
