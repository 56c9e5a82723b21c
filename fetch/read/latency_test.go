package read

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A quantile is at most 1/8 above the exact one, and never below it.
func TestLatencyQuantiles(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	now := time.Now()
	for range 50 {
		var l latencies
		var all []time.Duration
		scale := float64(uint64(1) << rng.IntN(24)) // 1 µs to 16 s
		for range 40 + rng.IntN(3000) {
			d := time.Duration(rng.ExpFloat64()*scale) * time.Microsecond
			all = append(all, max(d, time.Microsecond))
			l.add(now, d)
		}
		slices.Sort(all)
		for _, q := range []float64{0, 0.5, 0.95, 0.99} {
			exact := all[int(q*float64(len(all)))]
			got, ok := l.quantile(q)
			if !ok || got < exact || got > exact+exact/8+time.Microsecond {
				t.Fatalf("quantile %g of %d latencies is %s, exactly %s", q, len(all), got, exact)
			}
		}
	}
}

// Latencies older than two periods are forgotten, unless there are too few newer ones.
func TestLatenciesAreRecent(t *testing.T) {
	var l latencies
	now := time.Now()
	if _, ok := l.quantile(0.5); ok {
		t.Error("a quantile of nothing")
	}
	fill := func(n int, d time.Duration) {
		for range n {
			l.add(now, d)
		}
	}
	median := func() time.Duration { d, _ := l.quantile(0.5); return d }
	fill(1000, time.Second)
	now = now.Add(latencyPeriod + 1)
	fill(10, time.Millisecond)
	if m := median(); m < time.Second/2 {
		t.Errorf("median %s after few others", m)
	}
	for range 2 {
		fill(100, time.Millisecond)
		now = now.Add(latencyPeriod + 1)
	}
	fill(100, time.Millisecond)
	if m := median(); m > 2*time.Millisecond {
		t.Errorf("median %s, two periods later", m)
	}
}

// A bucket's latencies are above those of the bucket before it.
func TestLatencyBuckets(t *testing.T) {
	for i := 1; i < histLength-1; i++ {
		upper := upperOf(i)
		if bucketOf(upper) != i || bucketOf(upper+time.Microsecond) != i+1 {
			t.Fatalf("bucket %d ends at %s, which is in %d, and a microsecond more in %d", i, upper, bucketOf(upper),
				bucketOf(upper+time.Microsecond))
		}
	}
}

// A bucket holds latencies above the bound before it, up to its own.
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

// Counting a read allocates nothing, nor does checking whether a call is traced.
func TestCountingTakesNoMemory(t *testing.T) {
	var times Times
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		times.add(time.Millisecond)
		if NewTrace(ctx) != nil {
			t.Error("this call is not traced")
		}
	}); n != 0 {
		t.Errorf("%g allocations a read", n)
	}
}
