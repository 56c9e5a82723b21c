package cql

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/datastax/go-cassandra-native-protocol/message"
	"github.com/datastax/go-cassandra-native-protocol/primitive"
	"github.com/gocql/gocql"

	"bowstring/fetch/store"
	"bowstring/schema"
)

func TestGather(t *testing.T) {
	c := newCrowd(t, &mock{}, large(3*crowdKeys)...)
	c.well(c.all())
	c.gets(3, 0)
	if n, shared := c.gathering.statements.Load(), c.gathering.shared.Load(); n != 3 || shared != 3*crowdKeys {
		t.Errorf("%d statements for %d blobs are counted", n, shared)
	}
}

// TestGatherSameBlob: readers of one blob at the same time get it from one row.
func TestGatherSameBlob(t *testing.T) {
	c := newCrowd(t, &mock{}, 20_000)
	for range crowdKeys - 1 {
		c.refs = append(c.refs, c.refs[0])
	}
	c.well(c.all())
	c.gets(1, 0)
}

// TestGatherNobodyElse: while few reads are on their way, each goes at once.
func TestGatherAlone(t *testing.T) {
	c := newCrowd(t, &mock{}, large(2*nearLanes-1)...)
	h := c.host()
	h.reads = 0
	c.well(c.all())
	c.gets(0, 2*nearLanes-1)
	// A far host has as many lanes as connections.
	h.least = nearAnswer
	for _, n := range []struct{ reads, want int }{{7, 1}, {8, 2}, {40, 10}} {
		h.reads = n.reads
		if got := h.perLaneLocked(); got != n.want {
			t.Errorf("%d reads on their way over 4 connections are %d a lane, want %d", n.reads, got, n.want)
		}
	}
	h.reads = crowdReads
}

// TestGatherBounds: large blobs share no statement with small ones, nor do more than a bounded answer takes.
func TestGatherBounds(t *testing.T) {
	c := newCrowd(t, &mock{}, gatherSmall, gatherSmall+1, 5, 400_000, 400_001, 7, 400_002, 400_003, 9, 400_004)
	h := c.host()
	var members []*joined
	var statements []*statement
	h.mu.Lock()
	for _, ref := range c.refs {
		m := &joined{ref: ref, ended: make(chan struct{})}
		members = append(members, m)
		statements = append(statements, c.gathering.joinLocked(h, m))
	}
	h.reads++
	h.mu.Unlock()
	at := map[*statement]int{}
	want := []int{0, 1, 0, 1, 1, 0, 2, 2, 0, 3} // 1 and 2 as one more would be too much
	for i, st := range statements {
		if _, ok := at[st]; !ok {
			at[st] = len(at)
		}
		if at[st] != want[i] {
			t.Errorf("a blob of %d bytes is in statement %d, want %d", c.refs[i].Size, at[st], want[i])
		}
	}
	last := len(members) - 1
	members[last].stage.Store(memberLeft)
	statements[last].leave(members[last])
	for _, m := range members[:last] {
		<-m.ended
		m.buffer.Unpin()
	}
	c.gathering.running.Wait()
	c.gets(3, 0)
	for _, size := range []int64{0, gatherLargest + 1} {
		b, by, err := c.gathering.read(t.Context(), &schema.BlobRef{Size: size})
		if b != nil || by.host != nil || err != nil {
			t.Errorf("a blob of %d bytes: %v, %v, %v", size, b, by, err)
		}
	}
}

// TestGatherFaultOfOne: a fault of one blob does not affect its neighbours in the
// statement.
func TestGatherFaultOfOne(t *testing.T) {
	for name, c := range map[string]struct {
		cell    []byte
		want    error
		singles int // one at each level of consistency for what is missing
	}{
		"missing":     {nil, schema.ErrNotFound, 3},
		"empty":       {[]byte{}, schema.ErrDataLoss, 1},
		"short":       {[]byte("bow"), schema.ErrDataLoss, 1},
		"long":        {make([]byte, 30_000), schema.ErrDataLoss, 1},
		"other bytes": {make([]byte, 20_001), schema.ErrDataLoss, 0},
	} {
		t.Run(name, func(t *testing.T) {
			crowd := newCrowd(t, &mock{}, large(crowdKeys)...)
			crowd.set(crowd.refs[1], c.cell)
			errs := crowd.all()
			if !errors.Is(errs[1], c.want) {
				t.Errorf("got %v, want %v", errs[1], c.want)
			}
			errs[1] = nil
			crowd.well(errs)
			crowd.gets(1, c.singles)
		})
	}
}

// TestGatherFaults: the blobs of a statement that fails are read one by one, at another host first.
func TestGatherFaults(t *testing.T) {
	for name, c := range map[string]struct {
		deed deed
	}{
		"overloaded": {deed: deed{answer: &message.Overloaded{ErrorMessage: "busy"}}},
		"read timeout": {deed: deed{answer: &message.ReadTimeout{ErrorMessage: "slow",
			Consistency: primitive.ConsistencyLevelLocalOne, BlockFor: 1}}},
		"server error":    {deed: deed{answer: &message.ServerError{ErrorMessage: "oops"}}},
		"connection lost": {deed: deed{cut: true}},
	} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			first := &mock{peers: []string{"127.0.0.2"}}
			second := &mock{peers: []string{"127.0.0.1"}, do: well}
			crowd := &crowd{t: t, mock: first, cells: map[schema.Key][]byte{}}
			first.gathered = func([][]byte) deed { return c.deed }
			second.cells = crowd.cell
			startMock(t, second, "127.0.0.2", port)
			crowd.begin(port, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=4&keys=%d", port, crowdKeys),
				large(crowdKeys)...)
			crowd.well(crowd.all())
			if got := second.keys(); !slices.Equal(got, []int{1, 1, 1, 1}) {
				t.Errorf("the second server got %v, want %d single reads; the first one got %v", got, crowdKeys,
					first.keys())
			}
		})
	}
}

// TestGatherRefused: if a server refuses a number of keys, statements have fewer, down to
// single reads. After a while more are tried, because the refusal may have had another
// cause.
func TestGatherRefused(t *testing.T) {
	var takes atomic.Bool
	m := &mock{gathered: func([][]byte) deed {
		if takes.Load() {
			return deed{}
		}
		return deed{answer: &message.Invalid{ErrorMessage: tooManyKeys}}
	}}
	c := newCrowd(t, m, large(crowdKeys)...)
	refs := c.refs
	for _, want := range []struct{ reads, most int }{{4, 2}, {2, 1}, {4, 1}} {
		c.refs = refs[:want.reads]
		c.well(c.all())
		if got := c.gathering.most.Load(); int(got) != want.most {
			t.Errorf("statements ask for %d blobs, want %d", got, want.most)
		}
	}
	c.gets(2, 10)
	c.pass(raiseAfter)
	c.refs = refs[:2]
	c.well(c.all()) // two are tried, and refused
	c.gets(3, 12)
	takes.Store(true)
	for _, want := range []int{2, 4, 4} {
		c.pass(raiseAfter - 1)
		before := c.gathering.keys()
		c.pass(1)
		c.refs = refs[:want]
		c.well(c.all())
		if got := c.gathering.keys(); int(got) != want || int(before) > want {
			t.Errorf("statements ask for %d blobs before their time and %d after, want %d", before, got, want)
		}
	}
	c.gets(6, 12)
}

// TestGatherCancel: a blob whose reader has left is not requested, and delays no other.
func TestGatherCancel(t *testing.T) {
	c := newCrowd(t, &mock{}, large(crowdKeys)...)
	gone, cancel := context.WithCancelCause(t.Context())
	left := c.reading(gone, c.refs[0])
	c.waiting(1)
	why := errors.New("enough")
	cancel(why)
	if err := <-left; !errors.Is(err, why) {
		t.Errorf("got %v, want the cause", err)
	}
	c.refs = c.refs[1:]
	var ended []<-chan error
	for _, ref := range append(c.refs, c.refs[0]) {
		ended = append(ended, c.reading(t.Context(), ref))
	}
	for _, e := range ended {
		if err := <-e; err != nil {
			t.Error(err)
		}
	}
	if keys := c.mock.keys(); len(keys) != 1 || keys[0] != crowdKeys {
		t.Errorf("the server got %v, want one statement for those who stayed", keys)
	}
}

// TestGatherCancelAll: a statement without readers is not sent, or is cancelled.
func TestGatherCancelAll(t *testing.T) {
	for name, sent := range map[string]bool{"open": false, "sent": true} {
		t.Run(name, func(t *testing.T) {
			arrived := make(chan struct{})
			m := &mock{gathered: func([][]byte) deed { return deed{hang: true, arrive: func() { close(arrived) }} }}
			c := newCrowd(t, m, large(crowdKeys)...)
			ctx, cancel := context.WithCancel(t.Context())
			var ended []<-chan error
			if !sent {
				c.refs = c.refs[1:]
			}
			for _, ref := range c.refs {
				ended = append(ended, c.reading(ctx, ref))
			}
			if sent {
				<-arrived
			} else {
				c.waiting(len(c.refs))
			}
			cancel()
			for _, e := range ended {
				if err := <-e; !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			}
			c.gathering.running.Wait() // or the test hangs
			if n := len(m.keys()); sent != (n == 1) {
				t.Errorf("the server got %d requests", n)
			}
		})
	}
}

// TestGatherNot: other attempts, hosts that others are asked before, and hosts with shards.
func TestGatherNot(t *testing.T) {
	t.Run("attempts", func(t *testing.T) {
		c := newCrowd(t, &mock{}, 20_000)
		if err := <-c.reading(store.WithAttempt(t.Context(), 1), c.refs[0]); err != nil {
			t.Fatal(err)
		}
		c.gets(0, 1)
	})
	t.Run("avoided", func(t *testing.T) {
		c := newCrowd(t, &mock{}, 20_000)
		for h := range c.steering.known() {
			h.share.Store(fullShare - 1)
			defer h.share.Store(fullShare)
		}
		if err := <-c.reading(t.Context(), c.refs[0]); err != nil {
			t.Fatal(err)
		}
		c.gets(0, 1)
	})
	t.Run("shards", func(t *testing.T) {
		port, aware := freePort(t), freePort(t)
		m := startMock(t, &mock{shards: 2, awarePort: aware, do: well}, "127.0.0.1", port)
		s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=4", port))
		ref := m.ref()
		_, fork := reflect.TypeFor[gocql.ClusterConfig]().FieldByName("DisableShardAwarePort")
		if h := s.gathering.hostOf(&ref); (h == nil) != fork {
			t.Errorf("reads of a host with shards are gathered: %v; the driver asks the shard that has the blob: %v",
				h != nil, fork)
		}
		filled()
	})
}

// filled waits until the driver has filled its pools. A pool that is being filled for
// shards must not be closed: the driver then reads fields that are written without its
// lock.
func filled() {
	stacks := make([]byte, 1<<20)
	for bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*hostConnPool).fill")) {
		runtime.Gosched()
	}
}

// TestGatherAtOnce is for the race detector: reads that come, go and fail as they like.
func TestGatherAtOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	chance := rand.New(rand.NewPCG(seed, 0))
	m := &mock{gathered: func([][]byte) deed {
		mu.Lock()
		defer mu.Unlock()
		if chance.IntN(4) == 0 {
			return deed{answer: &message.Overloaded{ErrorMessage: "busy"}}
		}
		return deed{}
	}}
	sizes := large(40)
	for i := range sizes {
		sizes[i] = 1 + chance.IntN(2*gatherSmall)
	}
	c := newCrowd(t, m, sizes...)
	missing := c.refs[0]
	c.set(missing, nil)
	c.gathering.linger = func(time.Duration) time.Duration { return time.Millisecond }
	var g sync.WaitGroup
	for w := range uint64(16) {
		g.Go(func() {
			r := rand.New(rand.NewPCG(seed, w+1))
			for range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				ref := c.refs[r.IntN(len(c.refs))]
				ended := c.reading(ctx, ref)
				stays := r.IntN(4) > 0
				if !stays {
					cancel()
				}
				err := <-ended
				cancel()
				switch {
				case err == nil && ref != missing, !stays && errors.Is(err, context.Canceled),
					ref == missing && errors.Is(err, schema.ErrNotFound):
				default:
					t.Errorf("blob %v: %v", ref.Key, err)
				}
			}
		})
	}
	g.Wait()
}
