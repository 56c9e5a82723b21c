package read

import (
	"testing"
	"time"
)

// A path that is full tells its rate, one that streams have no use for tells its latency
// alone; and what is old is forgotten.
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
				f.completed(now, size, latency)
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
