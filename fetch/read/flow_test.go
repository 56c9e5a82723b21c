package read

import (
	"testing"
	"time"
)

// TestFlowStart: the initial number of reads in flight grows with the latency, and nodes divide it.
func TestFlowStart(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		latency      time.Duration
		sharers      int
		first, later int
	}{
		{0, 1, 8, 8},
		{ms / 4, 1, 64, 64},
		{ms, 1, 256, 256},
		{20 * ms, 1, 256, 256},
		{100 * ms, 1, 341, 256},
		{150 * ms, 1, 512, 256},
		{time.Second, 1, 512, 256},
		{150 * ms, 4, 128, 256},
	} {
		var f flow
		f.init(4096, func() int { return c.sharers })
		f.latency = c.latency
		if got := f.floor(); got != c.first {
			t.Errorf("to a store at %s, which %d share, %d reads may be in flight at first, want %d", c.latency,
				c.sharers, got, c.first)
		}
		if f.startup = false; f.floor() != c.later {
			t.Errorf("to a store at %s, %d reads may be in flight whatever was measured, want %d", c.latency, f.floor(),
				c.later)
		}
	}
}

// TestFlowStartEnds: the startup ends when the rate stops growing, at once if reads take longer as well. While the
// rate grows they may, because connections open their windows.
func TestFlowStartEnds(t *testing.T) {
	const rtt = 100 * time.Millisecond
	for name, c := range map[string]struct {
		quickest time.Duration // per round
		rates    []int64       // per round, in bytes per second
		rounds   int           // until the startup has ended; 0: it has not
	}{
		"grows":                {rtt, []int64{1e6, 2e6, 4e6, 8e6, 16e6}, 0},
		"grows, slower":        {2 * rtt, []int64{1e6, 2e6, 4e6, 8e6, 16e6}, 0},
		"is stalled":           {rtt, []int64{1e6, 2e6, 2e6, 2e6, 2e6}, 5},
		"is stalled, slower":   {2 * rtt, []int64{1e6, 2e6, 2e6, 2e6, 2e6}, 3},
		"grows little, slower": {2 * rtt, []int64{1e6, 1.2e6, 2e6, 4e6, 8e6}, 2},
	} {
		var f flow
		f.init(4096, func() int { return 1 })
		f.latency = rtt
		ended := 0
		for i, rate := range c.rates {
			f.quickest = c.quickest
			if f.fill(float64(rate)); !f.startup {
				ended = i + 1
				break
			}
		}
		if ended != c.rounds {
			t.Errorf("%s: the start ends after %d rounds, want %d", name, ended, c.rounds)
		}
	}
}

// A full path shows its rate, an underused one only its latency, and old measurements are forgotten.
func TestPast(t *testing.T) {
	var f flow
	f.init(4096, func() int { return 1 })
	now := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	const size, latency = 100_000, 20 * time.Millisecond
	begin := now
	run := func(gated bool, rounds int) {
		for range rounds {
			for range 10 {
				f.began(size)
			}
			now = now.Add(latency)
			for range 10 {
				f.gated = gated
				f.completed(now, size, latency, false)
			}
		}
	}
	run(false, 100)
	if got := f.past.between(begin, now); got.Full != 0 || got.Reads != 0 || got.Latency != latency {
		t.Errorf("of a path that was not asked for much: %+v", got)
	}
	f.startup = false
	run(true, 100)
	got := f.past.between(begin, now)
	if got.Full < time.Second {
		t.Fatalf("the path was full for 2 s, and it is said to have been for %s", got.Full)
	}
	if rate := float64(got.Reads) / got.Full.Seconds(); rate < 450 || rate > 550 {
		t.Errorf("%.0f reads a second, want 500; %+v", rate, got)
	}
	if got.Bytes != got.Reads*size {
		t.Errorf("%d reads of %d bytes are %d bytes", got.Reads, size, got.Bytes)
	}
	then := now
	now = now.Add(10 * time.Minute)
	run(true, 10)
	if both, late := f.past.between(begin, now), f.past.between(now.Add(-time.Minute),
		now); both.Reads != got.Reads+late.Reads || late.Reads == 0 {
		t.Errorf("%+v is not %+v and %+v", both, got, late)
	}
	for range 2 * spells { // a day
		now = now.Add(spellLength)
		f.past.add(now, 0, 0, 0, latency)
	}
	if got := f.past.between(begin, then); got != (Spell{}) {
		t.Errorf("a day later there is still %+v", got)
	}
}
