package cql

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

// TestReplicasAlike: where hosts are as quick as one another, the ring decides,
// whatever chance does to single reads.
func TestReplicasAlike(t *testing.T) {
	for name, c := range map[string]*replicas{
		"steady": {answers: near},
		"one in a hundred takes two seconds longer": {
			answers: func(r *replicas, host, size int) time.Duration {
				if rand.IntN(100) == 0 {
					return 2 * time.Second
				}
				return near(r, host, size)
			},
			deadline: func(*replicas) time.Duration { return 3 * time.Second },
		},
		"twice as far": {answers: func(r *replicas, host, size int) time.Duration {
			return near(r, host, size) * time.Duration(1+host/2)
		}},
		"large rows at one host": {
			answers: func(_ *replicas, _, size int) time.Duration {
				return 10*time.Millisecond + time.Duration(size)*time.Millisecond/5000
			},
			size: func(place int, rng *rand.Rand) int {
				if place == 2 && rng.IntN(10) > 0 {
					return PartBytes
				}
				return 20_000
			},
		},
		"all slow": {answers: func(*replicas, int, int) time.Duration { return 400 * time.Millisecond }},
	} {
		t.Run(name, func(t *testing.T) {
			r := simulate(t, 20*time.Second, c)
			if log := r.log.String(); log != "" {
				t.Errorf("the log says %s", log)
			}
			if r.partial.Load() != 0 {
				t.Error("a host lost reads")
			}
			if c.size == nil {
				even(t, r, 0, 20*time.Second)
			}
		})
	}
}

// TestSlowReplica: one that answers steadily, in twenty times the time, costs next
// to nothing, however many reads there are to go by.
func TestSlowReplica(t *testing.T) {
	for name, deadline := range map[string]func(*replicas) time.Duration{
		"waited for": nil,
		// As a hedge does that has won: the answer is never seen.
		"cancelled": func(*replicas) time.Duration { return 70 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			const long = 40 * time.Second
			r := simulate(t, long, &replicas{answers: slowFrom(0, long), deadline: deadline})
			if share := r.shares(2*time.Second, long)[2]; share > 0.002 {
				t.Errorf("the slow host is asked for %.4f of the reads", share)
			}
			// Two hosts alone would give as many reads as workers take turns.
			alone := float64(simulatedWorkers) * float64(long) / float64(20*time.Millisecond)
			if got := float64(r.whole) / alone; got < 0.95 {
				t.Errorf("there are %.3f of the reads that the quick hosts give alone", got)
			}
			if n := r.probes[2]; n < 20 || n > 50 {
				t.Errorf("the slow host was probed %d times in %v, want about once a second", n, long)
			}
			if n := strings.Count(r.log.String(), "slow"); n != 1 {
				t.Errorf("the log says %d times that it is slow: %s", n, &r.log)
			}
		})
	}
}

// TestReplicaRecovers: a host that was slow for some time gets its reads back, step
// by step.
func TestReplicaRecovers(t *testing.T) {
	const from, to = 10 * time.Second, 30 * time.Second
	r := simulate(t, 50*time.Second, &replicas{answers: slowFrom(from, to)})
	even(t, r, 0, from)
	if share := r.shares(from+2*time.Second, to)[2]; share > 0.002 {
		t.Errorf("the slow host is asked for %.4f of the reads", share)
	}
	even(t, r, 40*time.Second, 50*time.Second)
	steps := 0
	for i, m := range r.moves[1:] {
		before := r.moves[i]
		if rise := m.share - before.share; m.at > to && rise > 0 {
			steps++
			if rise > shareStep || m.at-before.at < paceEvery/2 {
				t.Errorf("the share of the host that is quick again rises from %d to %d within %v", before.share,
					m.share, m.at-before.at)
			}
		}
	}
	if steps < fullShare/shareStep {
		t.Errorf("the host that is quick again has all of its reads after %d steps: %v", steps, r.moves)
	}
	if !strings.Contains(r.log.String(), "quick again") {
		t.Errorf("the log does not say it: %s", &r.log)
	}
}

// TestDeadReplica: a host that never answers, and later does.
func TestDeadReplica(t *testing.T) {
	const to = 30 * time.Second
	r := simulate(t, 50*time.Second, &replicas{answers: func(r *replicas, host, size int) time.Duration {
		if host == 2 && r.now() < to {
			return -1
		}
		return near(r, host, size)
	}})
	if share := r.shares(3*time.Second, to)[2]; share > 0.002 {
		t.Errorf("the dead host is asked for %.4f of the reads", share)
	}
	even(t, r, 40*time.Second, 50*time.Second)
}

// TestFailingReplica: one that is quick to say that it cannot gets no more for it.
func TestFailingReplica(t *testing.T) {
	r := simulate(t, 20*time.Second, &replicas{answers: near, fails: true})
	if share := r.shares(2*time.Second, 20*time.Second)[2]; share > 0.002 {
		t.Errorf("the host that sheds load is asked for %.4f of the reads", share)
	}
}

// TestOverloadedReplica: a host that can do some of its reads does these. It does not alternate between none and all
// of them.
func TestOverloadedReplica(t *testing.T) {
	// The more requests a host has, the longer each takes.
	const bearable = 2
	r := simulate(t, 40*time.Second, &replicas{answers: func(r *replicas, host, size int) time.Duration {
		if host == 2 && r.busy[2] > bearable {
			return near(r, host, size) * time.Duration(r.busy[2]) / bearable
		}
		return near(r, host, size)
	}})
	low, high := 1.0, 0.0
	const span = 5 * time.Second // in a single second it may be asked for nothing
	for at := 10 * time.Second; at < 40*time.Second; at += span {
		share := r.shares(at, at+span)[2]
		low, high = min(low, share), max(high, share)
	}
	if low < 0.03 || high > 0.32 {
		t.Errorf("in spans of 5 s, the weak host is asked for %.3f to %.3f of the reads, want some all the time", low,
			high)
	}
}

// TestFewReads: with as few reads as in a quiet hour, no host is judged by chance.
func TestFewReads(t *testing.T) {
	c := newCourse(t, 3, 3)
	for range paceFew - 1 {
		c.take(0, 20*time.Millisecond)
		c.take(1, 20*time.Millisecond)
		c.take(2, 400*time.Millisecond)
	}
	slow := c.host(c.hosts[2])
	if share := slow.share.Load(); share != fullShare {
		t.Errorf("after seven slow reads the host has %d parts of its share", share)
	}
	c.take(0, 20*time.Millisecond)
	c.take(1, 20*time.Millisecond)
	c.take(2, 400*time.Millisecond)
	if share := slow.share.Load(); share < leastShare || share > fullShare/4 {
		t.Errorf("after eight slow reads the host has %d parts of its share, want few", share)
	}
	for range paceFew {
		c.take(2, 400*time.Millisecond)
	}
	c.want(c.order(2, 0), "0 1 2", "sixteen of them")
	c.want(c.order(2, 1), "1 2 0", "another attempt asks another host")
	c.want(c.order(2, 2), "2 0 1", "and a third one the last that is left")
	c.want(c.order(1, 0), "1 0 2", "behind other replicas")
	c.want(c.names(c.Pick(plainQuery{ctx: context.WithValue(context.Background(), placeKey{}, 2)})), "0 1 2",
		"another query")
}

// TestShareIsOfTheSameRows: which reads a host keeps of its own depends on their keys.
func TestShareIsOfTheSameRows(t *testing.T) {
	c := newCourse(t, 3, 3)
	h := c.host(c.hosts[0])
	h.mu.Lock()
	h.shareLocked(fullShare / 4)
	h.mu.Unlock()
	first := func(draw uint32) string {
		r := newReading(context.WithValue(context.Background(), placeKey{}, 0), "", 0)
		r.route.draw = draw
		return c.name(c.Pick(plainQuery{ctx: r})().Info())
	}
	kept := 0
	for n := range 4000 {
		draw := drawOf((*schema.Key)(bytes.Repeat(fmt.Appendf(nil, "%08d", n), 4)), 0)
		who := first(draw)
		if who == "0" {
			kept++
		}
		if again := first(draw); again != who {
			t.Fatalf("read %d goes to host %s, and then to %s", n, who, again)
		}
	}
	if kept < 900 || kept > 1100 {
		t.Errorf("a host with a quarter of its share keeps %d of 4000 reads", kept)
	}
}

// TestRoutesAllocateNothing: whatever hosts are passed over.
func TestRoutesAllocateNothing(t *testing.T) {
	c := newCourse(t, 3, 3)
	h := c.host(c.hosts[0])
	h.mu.Lock()
	h.shareLocked(0)
	h.mu.Unlock()
	r, _ := c.read(0, 0)
	next := r.route.next
	q := &r.route.query
	*q = inOrder{plainQuery{ctx: r}}
	hosts := [...]gocql.SelectedHost{plainHost{info: c.hosts[0]}, plainHost{info: c.hosts[1]},
		plainHost{info: c.hosts[2]}}
	at := 0
	ring := gocql.NextHost(func() gocql.SelectedHost { at++; return hosts[(at-1)%3] })
	c.HostSelectionPolicy = fixedPolicy{rest: ring}
	if n := testing.AllocsPerRun(1000, func() {
		at = 0
		r.route.begin(c.steering, r, q)
		if next() == nil {
			t.Error("no host")
		}
		r.route.end(nil)
	}); n > 1 { // the interface that the driver is given
		t.Errorf("a route takes %v allocations", n)
	}
}

type fixedPolicy struct {
	gocql.HostSelectionPolicy
	rest gocql.NextHost
}

func (p fixedPolicy) Pick(gocql.ExecutableQuery) gocql.NextHost { return p.rest }
