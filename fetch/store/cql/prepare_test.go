package cql

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/datastax/go-cassandra-native-protocol/message"

	"bowstring/schema"
)

// TestPrepareHosts: once each host has prepared what reading takes, no read waits for that.
func TestPrepareHosts(t *testing.T) {
	port := freePort(t)
	first, second := &mock{peers: []string{"127.0.0.2"}}, &mock{peers: []string{"127.0.0.1"}, do: well}
	c := &crowd{t: t, mock: first, cells: map[schema.Key][]byte{}}
	second.cells = c.cell
	startMock(t, second, "127.0.0.2", port)
	c.begin(port, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=4&keys=%d", port, crowdKeys), large(crowdKeys)...)
	c.prepareHosts(t.Context())
	want := []string{selectGathered, selectPart, selectPartition, selectRows, selectVersion}
	slices.Sort(want)
	before := map[*mock][]string{}
	for _, m := range []*mock{first, second} {
		before[m] = m.prepares()
		if got := slices.Sorted(slices.Values(before[m])); !slices.Equal(got, want) {
			t.Errorf("the host %s has prepared %q, want %q", m.addr, got, want)
		}
	}
	c.well(c.all())
	c.alone(2)
	c.alone(1)
	for m, was := range before {
		if got := m.prepares(); len(got) != len(was) {
			t.Errorf("the host %s prepares %q while blobs are read", m.addr, got[len(was):])
		}
	}
}

// TestPrepareLater: a host that does not prepare a statement ahead of its use does so when it is used.
func TestPrepareLater(t *testing.T) {
	var refuses atomic.Bool
	refuses.Store(true)
	m := &mock{prepare: func(string) message.Message {
		if refuses.Load() {
			return &message.Overloaded{ErrorMessage: "busy"}
		}
		return nil
	}}
	c := newCrowd(t, m, large(crowdKeys)...)
	c.prepareHosts(t.Context())
	refuses.Store(false)
	c.well(c.all())
	if got := m.keys(); len(got) != 1 || got[0] != crowdKeys {
		t.Errorf("the server got reads of %v blobs, want one of %d", got, crowdKeys)
	}
}

// TestPrepareNot: where statements ask for one blob, the one for several is not prepared.
func TestPrepareNot(t *testing.T) {
	m, port := mockAlone(t, well)
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=1&keys=1", port))
	s.prepareHosts(t.Context())
	if got := m.prepares(); len(got) != 4 || slices.Contains(got, selectGathered) {
		t.Errorf("the server has prepared %q", got)
	}
}

// TestGatherAtFirst: the first statement of a kind stays open for a part of what any answer took.
func TestGatherAtFirst(t *testing.T) {
	c := newCrowd(t, &mock{}, large(1)...)
	h := c.host()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.least = time.Second
	asked := make(chan time.Duration, 2)
	c.gathering.linger = func(usual time.Duration) time.Duration {
		asked <- usual
		return 0
	}
	k := &h.kinds[1]
	for _, want := range []time.Duration{time.Second, time.Minute} {
		st := c.gathering.joinLocked(h, &joined{ref: c.refs[0], ended: make(chan struct{})})
		if got := <-asked; got != want {
			t.Errorf("a statement is taken to last %s, want %s", got, want)
		}
		if k.open == st {
			k.closeLocked()
		}
		k.usual = time.Minute
	}
	k.usual = 0
}
