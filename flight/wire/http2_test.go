package wire

import (
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// The control frames that a client needs get through; a flood does not.
func TestControlFrames(t *testing.T) {
	frame := func(kind, flags byte, payload int) []byte {
		b := make([]byte, frameHeader+payload)
		putFrameLength(b, payload)
		b[3], b[4] = kind, flags
		return b
	}
	for _, tt := range []struct {
		name  string
		frame []byte
		flood bool
	}{
		{"resets", frame(typeReset, 0, 4), true},
		{"pings", frame(typePing, 0, 8), true},
		{"settings", frame(typeSettings, 0, 0), true},
		{"priorities", frame(typePriority, 0, 5), true},
		{"continuations", frame(typeContinuation, 0, 0), true},
		{"empty data", frame(typeData, 0, 0), true},
		{"ends of streams", frame(typeData, flagEndStream, 0), false},
		{"answers to pings", frame(typePing, flagAck, 8), false},
		{"windows", frame(8, 0, 4), false},
		{"data", frame(typeData, 0, 5), false},
	} {
		var r settingsReader
		r.see(make([]byte, clientPreface))
		r.control.SetLimit(0) // the clock is stopped
		ok := true
		for range controlBurst + 1 {
			ok = r.see(tt.frame) && ok
		}
		if ok == tt.flood || r.flooded.Load() != tt.flood {
			t.Errorf("%s: got through is %t", tt.name, ok)
		}
	}
	b, now := rate.NewLimiter(controlPerSec, controlBurst), time.Now()
	for range 10 * controlBurst {
		if now = now.Add(time.Second / controlPerSec); !b.AllowN(now, 1) {
			t.Fatal("as many as may be in a second were refused in the end")
		}
	}
}

// TestRapidResets holds that streams which are begun and reset at once count as many: a connection gets through with fewer
// of them than of those that were read from first.
func TestRapidResets(t *testing.T) {
	of := func(kind byte, stream uint32) []byte {
		b := dataHeader(stream, 0)
		b[3] = kind
		return b
	}
	for _, tt := range []struct {
		name   string
		rapid  bool
		passed int
	}{{"at once", true, controlBurst / rapidReset}, {"later", false, controlBurst}} {
		var r settingsReader
		r.see(make([]byte, clientPreface))
		r.control.SetLimit(0) // the clock is stopped
		n := 0
		for id := uint32(1); ; id += 2 {
			begun, reset := of(typeHeaders, id), of(typeReset, id)
			if tt.rapid {
				begun, reset = append(begun, reset...), nil
			}
			if !r.see(begun) || !r.see(reset) {
				break
			}
			n++
		}
		if n != tt.passed {
			t.Errorf("%d streams were begun and reset %s before the end, want %d", n, tt.name, tt.passed)
		}
	}
}
