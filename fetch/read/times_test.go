package read

import (
	"context"
	"math"
	"testing"
	"time"
)

// A bucket has what took longer than the bound before it, and no longer than its own.
func TestTimesBuckets(t *testing.T) {
	bound := func(i int) float64 { return math.Exp2(float64(TimesFirst+i) / perDoubling) }
	for d := time.Duration(1); d < time.Hour; d += d/17 + 1 {
		i, s := bucketOfTimes(d), d.Seconds()
		if i > 0 && s <= bound(i-1) || i < TimesLength-1 && s > bound(i) {
			t.Fatalf("%s is in bucket %d, which is from %g s to %g s", d, i, bound(i-1), bound(i))
		}
	}
	for d, want := range map[time.Duration]int{0: 0, 900 * time.Nanosecond: 0, time.Microsecond: 1,
		time.Second: -TimesFirst, time.Hour: TimesLength - 1} {
		if got := bucketOfTimes(d); got != want {
			t.Errorf("%s is in bucket %d, want %d", d, got, want)
		}
	}
	var times Times
	times.add(time.Second)
	if times.Count != 1 || times.Sum != time.Second || times.Counts[-TimesFirst] != 1 {
		t.Errorf("got %d reads of %s", times.Count, times.Sum)
	}
}

// To count a read in takes no memory, nor does to look whether a call is traced.
func TestCountingTakesNoMemory(t *testing.T) {
	var times Times
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		times.add(time.Millisecond)
		if NewTrace(ctx) != nil {
			t.Error("nobody traces this")
		}
	}); n != 0 {
		t.Errorf("%g allocations a read", n)
	}
}
