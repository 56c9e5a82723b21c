package admission

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Sent bytes stay within the limit, whatever the tenants request. Tenants that want all get parts by weight, and
// unused parts go to others.
func TestEgress(t *testing.T) {
	const rate = 1 << 20
	for name, test := range map[string]struct {
		limits EgressLimits
		wants  map[string]int64 // bytes per second that each tenant requests
		weight map[string]int64
		least  map[string]float64 // least part of the rate that each gets
	}{
		"one": {EgressLimits{All: rate}, map[string]int64{"a": 4 * rate}, nil, map[string]float64{"a": .95}},
		"two alike": {EgressLimits{All: rate}, map[string]int64{"a": 9 * rate, "b": 2 * rate}, nil,
			map[string]float64{"a": .42, "b": .42}},
		"by weight": {EgressLimits{All: rate}, map[string]int64{"a": 4 * rate, "b": 4 * rate},
			map[string]int64{"a": 3}, map[string]float64{"a": .68, "b": .21}},
		"one is small": {EgressLimits{All: rate}, map[string]int64{"a": 9 * rate, "b": rate / 10}, nil,
			map[string]float64{"a": .8, "b": .095}},
		"of a zone": {EgressLimits{Zones: map[string]int64{"z": rate}}, map[string]int64{"a": 4 * rate, "b": 4 * rate},
			nil, map[string]float64{"a": .42, "b": .42}},
	} {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			start := time.Unix(1000, 0)
			now := start
			e := NewEgress(test.limits)
			e.now = func() time.Time { return now }
			e.all.at, e.all.swept = now, now
			for _, w := range e.zones {
				w.at, w.swept = now, now
			}
			got, asked := map[string]int64{}, map[string]float64{}
			const seconds, tick = 20, time.Millisecond
			for ; now.Sub(start) < seconds*time.Second; now = now.Add(tick) {
				for _, tenant := range []string{"a", "b"} { // in fixed order: the first has no advantage
					for asked[tenant] += float64(test.wants[tenant]) * tick.Seconds(); asked[tenant] > 0; {
						n := 500 + rng.Int64N(3000)
						asked[tenant] -= float64(n)
						if e.Admit("n", "z", tenant, test.weight[tenant], n) {
							got[tenant] += n
							e.Sent("n", "z", 1, n, false)
						}
					}
				}
			}
			if all := got["a"] + got["b"]; all > rate*seconds+rate {
				t.Errorf("%d bytes were sent in %d s of %d bytes", all, seconds, rate)
			}
			for tenant, least := range test.least {
				if part := float64(got[tenant]) / (rate * seconds); part < least {
					t.Errorf("tenant %s got %.3f of the rate, want %g", tenant, part, least)
				}
			}
			st := e.Stats()
			if st.Nodes[0].Bytes != got["a"]+got["b"] || st.Zones[0].Bytes != st.Nodes[0].Bytes ||
				st.Nodes[0].Refused == 0 && name != "one is small" {
				t.Errorf("counted %+v, sent %v", st, got)
			}
		})
	}
}

// A zone without a limit is not bounded by another zone's. Without limits nothing is refused.
func TestEgressWithoutLimit(t *testing.T) {
	e := NewEgress(EgressLimits{Zones: map[string]int64{"far": 1}})
	for range 100 {
		if !e.Admit("n", "near", "t", 1, 1<<30) {
			t.Fatal("refused without a limit")
		}
	}
	if e.Admit("m", "far", "t", 1, 1<<30); e.Admit("m", "far", "t", 1, 1) {
		t.Error("a limit of a byte a second lets a second blob through")
	}
	if st := e.Stats(); len(st.Nodes) != 1 || st.Nodes[0].Refused != 1 {
		t.Errorf("counted %+v", st)
	}
	for i := range mostEgressNodes + 10 {
		e.Sent(time.Duration(i).String(), "near", 1, 1, true)
	}
	if n := len(e.Stats().Nodes); n > mostEgressNodes+1 {
		t.Errorf("%d nodes are counted by name", n)
	}
}
