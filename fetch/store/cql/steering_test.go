package cql

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gocql/gocql"
)

func TestAttemptsAskOtherReplicas(t *testing.T) {
	for _, c := range []struct {
		hosts, replicas, place, attempt int
		want                            string
	}{
		{5, 3, 0, 0, "0 1 2 3 4"},
		{5, 3, 1, 0, "1 2 3 4 0"},
		{5, 3, 1, 1, "2 3 1 4 0"},
		{5, 3, 1, 2, "3 1 2 4 0"},
		{5, 3, 1, 3, "1 2 3 4 0"},
		{5, 3, 1, 100, "2 3 1 4 0"},
		{5, 1, 1, 1, "1 2 3 4 0"},
		{2, 3, 1, 1, "0 1"},
		{1, 3, 0, 7, "0"},
		{5, 0, 0, 1, "1 2 0 3 4"},                   // three are assumed
		{12, 12, 0, 1, "1 2 3 4 5 6 7 0 8 9 10 11"}, // eight take turns
	} {
		course := newCourse(t, c.hosts, c.replicas)
		for range 2 { // it does not depend on what was asked before
			course.want(course.order(c.place, c.attempt), c.want, fmt.Sprintf("%+v", c))
		}
	}
}

func TestSilentHostIsAskedLast(t *testing.T) {
	c := newCourse(t, 5, 3)
	for range 5 {
		c.take(1, 10*time.Millisecond)
	}
	c.read(2, 0) // builds nothing but a route
	silent, next := c.read(1, 0)
	next()
	c.clock += silenceLeast
	c.want(c.order(1, 0), "1 2 3 4 0", "just in time")
	c.clock++
	c.want(c.order(1, 0), "2 3 4 0 1", "too late")
	c.want(c.order(1, 1), "3 2 4 0 1", "too late, another attempt")
	c.want(c.order(1, 2), "2 3 4 0 1", "too late, a third attempt")
	c.want(c.order(0, 0), "0 2 3 4 1", "too late, a read of another host")
	c.want(c.order(3, 1), "4 0 3 2 1", "not among the replicas")
	// Requests other than reads of blobs avoid it too.
	c.want(c.names(c.Pick(plainQuery{ctx: context.WithValue(context.Background(), placeKey{}, 1)})), "2 3 4 0 1",
		"another query")
	if !slices.Equal(c.asked, []string{"1"}) {
		t.Errorf("the hosts %v are asked whether they answer, want the silent one, once", c.asked)
	}
	if !strings.Contains(c.log.String(), "silent") || !strings.Contains(c.log.String(), "host=1") {
		t.Errorf("the log does not say it: %q", &c.log)
	}
	// The answer that was owed ends it.
	silent.route.end(nil)
	c.want(c.order(1, 0), "1 2 3 4 0", "after the answer")
	if !strings.Contains(c.log.String(), "answers again") {
		t.Errorf("the log does not say that it is over: %q", &c.log)
	}
	// How long that took says nothing of what is usual.
	c.clock += time.Minute
	_, next = c.read(1, 0)
	next()
	c.clock += silenceLeast + 1
	c.want(c.order(1, 0), "2 3 4 0 1", "silent again")
	c.host(c.hosts[1]).answer(c.clock)
	c.want(c.order(1, 0), "1 2 3 4 0", "after an answer to who asked")
}

func TestOnlyReplicaIsAskedThoughSilent(t *testing.T) {
	c := newCourse(t, 3, 1)
	_, next := c.read(1, 0)
	next()
	c.clock += 2 * silenceLeast
	c.want(c.order(1, 0), "1 2 0", "one replica")
	if len(c.asked) != 1 {
		t.Error("it was not noticed that it is silent")
	}
}

// TestWhatIsNoAnswer: a host is silent even if no read waits for it any more.
func TestWhatIsNoAnswer(t *testing.T) {
	for name, err := range map[string]error{
		"cancelled":       context.Canceled,
		"deadline":        context.DeadlineExceeded,
		"timeout":         gocql.ErrTimeoutNoResponse,
		"connection lost": gocql.ErrConnectionClosed,
		"not asked":       errNotAsked,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCourse(t, 3, 3)
			// Cancelled reads, one after the other, none of which waits for long.
			for range 12 {
				r, next := c.read(0, 0)
				h := next()
				c.clock += silenceLeast / 10
				h.Mark(nil) // as drivers do when a request was cancelled
				r.route.end(err)
			}
			c.want(c.order(0, 0), "1 2 0", name)
		})
	}
	c := newCourse(t, 3, 3)
	for range 100 {
		r, next := c.read(0, 0)
		h := next()
		c.clock += silenceLeast / 10
		h.Mark(serverError{})
		r.route.end(context.Canceled) // does not count: it was ended
	}
	c.want(c.order(0, 0), "0 1 2", "a server's error")
}

type serverError struct{ error }

func (serverError) Code() int    { return codeOverloaded }
func (serverError) GetCode() int { return codeOverloaded }

// TestUnheardAnswer: if the only read was cancelled and no other was made for long, the host may have answered.
func TestUnheardAnswer(t *testing.T) {
	c := newCourse(t, 3, 3)
	r, next := c.read(0, 0)
	next()
	r.route.end(context.Canceled)
	c.clock += time.Hour
	c.want(c.order(0, 0), "0 1 2", "after an hour without a read")
}

// TestOverdue: it takes no second read to notice one that was waited for in vain.
func TestOverdue(t *testing.T) {
	c := newCourse(t, 3, 3)
	r, next := c.read(0, 0)
	next()
	c.clock += silenceLeast + 1
	r.route.end(gocql.ErrTimeoutNoResponse)
	c.clock += time.Hour
	c.want(c.order(0, 0), "1 2 0", "after a read that timed out")
}

// TestUsualLatency: the time after which a host counts as silent follows its usual
// latency.
func TestUsualLatency(t *testing.T) {
	c := newCourse(t, 3, 3)
	for range 200 {
		c.take(0, time.Second)
	}
	_, next := c.read(0, 0)
	next()
	c.clock += 7 * time.Second
	c.want(c.order(0, 0), "0 1 2", "seven times the usual latency")
	c.clock += 2 * time.Second
	c.want(c.order(0, 0), "1 2 0", "nine times the usual latency")
	// Another answer is a sign of life, whichever read it is for.
	d := newCourse(t, 3, 3)
	_, next = d.read(0, 0)
	next()
	for range 10 {
		d.clock += silenceLeast / 2
		d.take(0, 0)
	}
	d.want(d.order(0, 0), "0 1 2", "answers to others")
	d.clock += silenceLeast + 1
	d.want(d.order(0, 0), "1 2 0", "no answers any more")
}

func TestHostLeaves(t *testing.T) {
	c := newCourse(t, 3, 3)
	c.HostSelectionPolicy = struct {
		*ringPolicy
		gocql.HostStateNotifier
	}{c.HostSelectionPolicy.(*ringPolicy), notified{}}
	_, next := c.read(0, 0)
	next()
	c.clock += silenceLeast + 1
	c.want(c.order(0, 0), "1 2 0", "silent")
	gone := c.host(c.hosts[0]).gone
	c.RemoveHost(c.hosts[0])
	select {
	case <-gone:
	default:
		t.Error("a caller that waits for the host does not learn that it is gone")
	}
	if n := c.silent.Load(); n != 0 {
		t.Errorf("%d hosts are silent", n)
	}
	c.want(c.order(0, 0), "0 1 2", "back in the cluster")
}

type notified struct{}

func (notified) AddHost(*gocql.HostInfo)    {}
func (notified) RemoveHost(*gocql.HostInfo) {}
func (notified) HostUp(*gocql.HostInfo)     {}
func (notified) HostDown(*gocql.HostInfo)   {}

// TestOnlyHost: a probe of a host asks no other host.
func TestOnlyHost(t *testing.T) {
	c := newCourse(t, 3, 3)
	h := c.host(c.hosts[2])
	c.want(c.names(c.Pick(plainQuery{ctx: asking{context.Background(), h}})), "2", "one host")
}

// TestSteeringAtOnce is for the race detector, and counts.
func TestSteeringAtOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := newCourse(t, 3, 3)
	var clock struct {
		sync.Mutex
		time.Duration
	}
	c.steering.now = func() time.Duration {
		clock.Lock()
		defer clock.Unlock()
		clock.Duration += time.Millisecond
		return clock.Duration
	}
	c.ask = func(h *host, _ *reading) {
		h.answer(c.now())
		h.mu.Lock()
		h.shareLocked(fullShare)
		h.mu.Unlock()
		if !h.rested() {
			t.Error("a host is asked on that has answered")
		}
	}
	var g sync.WaitGroup
	for w := range uint64(4) {
		g.Go(func() {
			r := rand.New(rand.NewPCG(seed, w))
			for range 2000 {
				read, next := c.read(r.IntN(3), r.IntN(4))
				for h := next(); h != nil && r.IntN(2) == 0; h = next() {
					h.Mark(gocql.ErrConnectionClosed)
				}
				read.route.end([]error{nil, context.Canceled, gocql.ErrTimeoutNoResponse}[r.IntN(3)])
			}
		})
	}
	g.Wait()
	for _, info := range c.hosts {
		if h := c.host(info); h.waiting != 0 || h.quiet.Load() {
			t.Errorf("host %s: %d reads are counted as waiting, silent is %v", c.name(info), h.waiting, h.quiet.Load())
		}
	}
	if n := c.silent.Load(); n != 0 {
		t.Errorf("%d hosts are counted as silent", n)
	}
}

func TestReplicasIn(t *testing.T) {
	for _, c := range []struct {
		options map[string]any
		want    int32
	}{
		{map[string]any{"class": "NetworkTopologyStrategy", "dc1": "3", "dc2": "5"}, 3},
		{map[string]any{"class": "SimpleStrategy", "replication_factor": "2"}, 2},
		{map[string]any{"dc1": "3/1"}, 3},
		{map[string]any{"dc2": "3"}, 0},
		{map[string]any{"dc1": []string{"rack1"}}, 0},
		{map[string]any{"dc1": "many"}, 0},
		{nil, 0},
	} {
		if got := replicasIn("dc1", c.options); got != c.want {
			t.Errorf("%v: %d replicas, want %d", c.options, got, c.want)
		}
	}
}

func BenchmarkRoute(b *testing.B) {
	c := newCourse(b, 3, 3)
	b.ReportAllocs()
	for range b.N {
		r, next := c.read(0, 0)
		next()
		r.route.end(nil)
	}
}

// A session that reads no blobs asks hosts that are silent to another one's reads after the others.
func TestSessionsShareWhatReadsSee(t *testing.T) {
	reads := &steering{}
	silent := new(gocql.HostInfo)
	reads.host(silent).quiet.Store(true)
	reads.silent.Store(1)
	control := &steering{reads: reads}
	if control.seen() != reads || reads.seen() != reads {
		t.Error("each looks at itself")
	}
	if info := new(gocql.HostInfo); !control.avoids(info) { // of the same id, which is that of none
		t.Error("a silent host is asked like others")
	}
	reads.host(silent).quiet.Store(false)
	if control.avoids(new(gocql.HostInfo)) {
		t.Error("a host that answers is asked after others")
	}
}
