package cql

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/datastax/go-cassandra-native-protocol/message"
	"github.com/datastax/go-cassandra-native-protocol/primitive"
	"github.com/gocql/gocql"

	"bowstring/schema"
)

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		deed   deed
		params string
		says   string
	}{
		"overloaded": {deed: deed{answer: &message.Overloaded{ErrorMessage: "busy"}}, says: "sheds load"},
		"unavailable": {deed: deed{answer: &message.Unavailable{ErrorMessage: "down",
			Consistency: primitive.ConsistencyLevelLocalOne, Required: 1}}, says: "too few replicas"},
		"read timeout": {deed: deed{answer: &message.ReadTimeout{ErrorMessage: "slow",
			Consistency: primitive.ConsistencyLevelLocalOne, BlockFor: 1}}, says: "too slow"},
		"read failure": {deed: deed{answer: &message.ReadFailure{ErrorMessage: "bad disk",
			Consistency: primitive.ConsistencyLevelLocalOne, BlockFor: 1, NumFailures: 1}}, says: "its log"},
		"server error":  {deed: deed{answer: &message.ServerError{ErrorMessage: "oops"}}, says: "its log"},
		"bootstrapping": {deed: deed{answer: &message.IsBootstrapping{ErrorMessage: "joining"}}, says: "joining"},
		"cut":           {deed: deed{cut: true}, says: "check"},
		"hang":          {deed: deed{hang: true}, params: "&timeout=1s", says: "no answer within 1s"},
		"wrong stream":  {deed: deed{stream: 1000}, params: "&timeout=1s", says: "no answer within 1s"},
	} {
		t.Run(name+" once", func(t *testing.T) {
			var did atomic.Bool // one of the servers does it
			do := func(int) deed {
				if did.CompareAndSwap(false, true) {
					return c.deed
				}
				return deed{}
			}
			a, b, port := mockPair(t, do, do)
			s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=2%s", port, c.params))
			if err := a.read(t.Context(), s); err != nil {
				t.Fatalf("a read that should have been tried again: %v", err)
			}
			if len(a.reads()) != 1 || len(b.reads()) != 1 {
				t.Errorf("%d and %d reads of the servers, want one of each: the other is asked", len(a.reads()),
					len(b.reads()))
			}
		})
		t.Run(name+" always", func(t *testing.T) {
			m, port := mockAlone(t, func(int) deed { return c.deed })
			s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=4%s", port, c.params))
			err := m.read(t.Context(), s)
			if !errors.Is(err, schema.ErrUnavailable) {
				t.Fatalf("%v, want one that can be tried again", err)
			}
			for _, word := range []string{"mock." + tableParts, "127.0.0.1:" + strconv.Itoa(port), c.says,
				m.ref().Key.String()} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not say %q", err, word)
				}
			}
			if n := len(m.reads()); n != 1 {
				t.Errorf("the only server was asked %d times, want 1: whether to wait and ask again is the "+
					"caller's business", n)
			}
		})
	}
}

// TestCutBetweenPages: a page without rows, and no other.
func TestCutBetweenPages(t *testing.T) {
	m, port := mockAlone(t, func(int) deed { return deed{pages: true} })
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=2", port))
	if err := m.read(t.Context(), s); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("%v, want one that can be tried again", err)
	}
}

// TestReadAfterCut: the connections that were lost are made again.
func TestReadAfterCut(t *testing.T) {
	m, port := mockAlone(t, func(n int) deed { return deed{cut: n%2 == 1} })
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=4", port))
	for n := 0; n < 6; {
		if err := m.read(t.Context(), s); err == nil {
			n++
		} else if !errors.Is(err, schema.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// TestSameHostFirst: a blob is read from the same host all the time.
func TestSameHostFirst(t *testing.T) {
	a, b, port := mockPair(t, well, well)
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=1", port))
	s.steering.now = func() time.Duration { return 0 } // it stands: no host is slow where this machine is busy
	const reads = 10
	for range reads {
		if err := a.read(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if x, y := len(a.reads()), len(b.reads()); x+y != reads || x != 0 && y != 0 {
		t.Errorf("%d and %d reads of the servers, want %d of one of them", x, y, reads)
	}
}

func TestCancelEndsReads(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the client has gone")
	m, port := mockAlone(t, func(int) deed {
		return deed{hang: true, arrive: func() { cancel(cause) }}
	})
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?timeout=1h", port))
	if err := m.read(ctx, s); !errors.Is(err, cause) { // or the test hangs
		t.Errorf("got %v, want the cause of the cancellation", err)
	}
	if n := len(m.reads()); n != 1 {
		t.Errorf("the server was asked %d times", n)
	}
	if n := s.buffers.stats().buffers; n != 0 {
		t.Errorf("%d buffers are pinned, and no caller has them", n)
	}
}

// TestMissingRow: a replica that has no row is not believed at once.
func TestMissingRow(t *testing.T) {
	m, port := mockAlone(t, func(n int) deed {
		if n <= 2 {
			return deed{answer: part()}
		}
		return deed{}
	})
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock", port))
	if err := m.read(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	want := []primitive.ConsistencyLevel{primitive.ConsistencyLevelLocalOne, primitive.ConsistencyLevelLocalQuorum,
		primitive.ConsistencyLevelQuorum}
	if got := m.reads(); !slices.Equal(got, want) {
		t.Errorf("read at %v, want %v", got, want)
	}
}

// TestWrongSize: a cell of another size than the manifest says.
func TestWrongSize(t *testing.T) {
	for name, cell := range map[string][]byte{"short": []byte("bow"), "empty": {}, "long": make([]byte, 200_000)} {
		t.Run(name, func(t *testing.T) {
			m, port := mockAlone(t, func(int) deed { return deed{answer: part(message.Row{cell})} })
			s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock", port))
			err := m.read(t.Context(), s)
			if !errors.Is(err, schema.ErrDataLoss) {
				t.Fatalf("got %v", err)
			}
			for _, word := range []string{strconv.Itoa(len(cell)), strconv.Itoa(len(m.blob)), "127.0.0.1"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not say %s", err, word)
				}
			}
		})
	}
}

// TestSilentServer: a hanging server is avoided until it answers a probe.
func TestSilentServer(t *testing.T) {
	var hung atomic.Bool
	asked := make(chan struct{}, 1000)
	first := func(int) deed {
		asked <- struct{}{}
		return deed{hang: hung.Load()}
	}
	a, b, port := mockPair(t, first, first)
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=1&timeout=700ms", port))
	if err := a.read(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	<-asked
	st := s.steering
	hung.Store(true)
	// Both hang, so that each becomes silent.
	for st.silent.Load() == 0 {
		if err := a.read(t.Context(), s); !errors.Is(err, schema.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
	}
	hung.Store(false)
	for st.silent.Load() > 0 {
		<-asked // or the test hangs
		if err := a.read(t.Context(), s); err != nil && !errors.Is(err, schema.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if len(a.reads()) == 0 || len(b.reads()) == 0 {
		t.Errorf("%d and %d reads of the servers", len(a.reads()), len(b.reads()))
	}
}

// TestShards: ScyllaDB's fork opens a connection to each shard, and sends a read
// to the one of its key.
func TestShards(t *testing.T) {
	const shards = 4
	port, aware := freePort(t), freePort(t)
	m := startMock(t, &mock{shards: shards, awarePort: aware, do: well}, "127.0.0.1", port)
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=4", port))
	_, fork := reflect.TypeFor[gocql.ClusterConfig]().FieldByName("DisableShardAwarePort")
	if fork {
		// The driver fills its pool in the background. One was connected by way of
		// the other port.
		for seen := map[int]bool{0: true}; len(seen) < shards; {
			select {
			case shard := <-m.connected:
				seen[shard] = true
			case <-time.After(time.Minute):
				t.Fatalf("connections to the shards %v of %d only", seen, shards)
			}
		}
	}
	const reads = 20
	for range reads {
		if err := m.read(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.places) != reads {
		t.Errorf("%d reads arrived, want %d", len(m.places), reads)
	}
	// A connection may still have been on its way for the first ones.
	if last := m.places[reads/2:]; fork && slices.Min(last) != slices.Max(last) {
		t.Errorf("reads of one key came to the shards %v", last)
	}
}
