//go:build cassandra

package cql

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch"
	"bowstring/internal/cassandratest"
	"bowstring/internal/rounds"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// TestNodeLost has one node of three stopped, and later another killed, while
// blobs are read, epochs streamed and snapshots committed: none of it fails.
func TestNodeLost(t *testing.T) {
	if testing.Short() || rounds.Count(0, 1) == 0 {
		t.Skip("starts three servers; BOWSTRING_TESTS=all, as in make nightly, runs it")
	}
	nodes := cassandratest.StartCluster(t)
	address := fmt.Sprintf("cql://%s,%s:%d,%s/lost?rf=3", nodes[0].IP, nodes[1].IP, nodes[0].Port, nodes[2].IP)
	open := func(t *testing.T, parameters string) *Store {
		t.Helper()
		if err := Init(t.Context(), address+parameters, InitOptions{Logger: quiet}); err != nil {
			t.Fatal(err)
		}
		options := Options{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
		s, err := Open(t.Context(), address+parameters, options)
		// On a small machine the other nodes may take too long for a quorum right after a
		// node was killed. The request is then repeated.
		for try := 0; errors.Is(err, schema.ErrUnavailable) && try < 5; try++ {
			t.Log(err)
			s, err = Open(t.Context(), address+parameters, options)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if n := s.buffers.stats(); n.buffers != 0 || n.mapped != 0 {
				t.Errorf("after Close there are %d buffers, and %d bytes mapped", n.buffers, n.mapped)
			}
		})
		return s
	}
	signal := func(t *testing.T, n *cassandratest.Node, sig syscall.Signal) {
		t.Helper()
		if err := n.Signal(sig); err != nil {
			t.Error(err)
		}
	}
	t.Run("reads", func(t *testing.T) {
		// These requests are neither retried nor hedged by a caller, so the driver has to retry. Three servers may
		// keep a small machine so busy that a running one does not answer for some seconds.
		s := open(t, "&timeout=8s&conns=2")
		data := blobs("lost", 200, 5000)
		if _, err := importInto(t.Context(), s, "reads", 0, data); err != nil {
			t.Fatal(err)
		}
		defer signal(t, nodes[1], syscall.SIGCONT)
		var done atomic.Int64
		var g errgroup.Group
		g.SetLimit(atOnceWithALoss)
		for i, b := range data {
			if i == len(data)/2 {
				signal(t, nodes[1], syscall.SIGSTOP)
			}
			g.Go(func() error {
				defer done.Add(1)
				if err := has(t, s, b); err != nil {
					return fmt.Errorf("blob %d: %w", i, err)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		if done.Load() != int64(len(data)) {
			t.Errorf("%d of %d reads were made", done.Load(), len(data))
		}
	})
	t.Run("streams", func(t *testing.T) {
		streamThrough(t, open(t, ""), []event{
			{"all nodes up", func() {}},
			{"one stopped", func() { signal(t, nodes[1], syscall.SIGSTOP) }},
			{"it goes on", func() { signal(t, nodes[1], syscall.SIGCONT) }},
			{"another killed", nodes[2].Kill},
		})
	})
	t.Run("imports", func(t *testing.T) {
		if _, err := importInto(t.Context(), open(t, "&timeout=60s"), "imports", 0,
			blobs("after", 5, 100)); err != nil {
			t.Errorf("an import with a node down: %v", err)
		}
	})
}

// event is what happens while epochs are streamed.
type event struct {
	name    string
	happens func()
}

// streamThrough streams shuffled epochs through an engine. After each event it continues
// for some seconds and a whole epoch. No epoch may lack a sample, repeat one, or have
// wrong bytes.
func streamThrough(t *testing.T, s *Store, events []event) {
	const (
		samples = 800
		phase   = 3 * time.Second
		// A batch at a time, so that three servers and the race detector have the processor too.
		every = 20 * time.Millisecond
	)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	data := make([][]byte, samples)
	for i := range data {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		data[i] = make([]byte, 16_000+rng.IntN(8_000))
		for k := 0; k+8 <= len(data[i]); k += 8 {
			binary.LittleEndian.PutUint64(data[i][k:], rng.Uint64())
		}
	}
	if err := importAtOnce(t.Context(), s, "streams", data); err != nil {
		t.Fatal(err)
	}
	engine, err := fetch.NewEngine(s, fetch.Options{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	job, err := engine.Open(ctx, schema.Request{Dataset: "streams", Shuffle: &schema.Shuffle{Seed: seed}, Batch: 32})
	if err != nil {
		t.Fatal(err)
	}
	defer job.Close()
	stream, err := engine.Stream(ctx, job, schema.Ticket{Request: job.Request(), Epochs: schema.MaxEpochs})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()

	at := make([]time.Time, 0, len(events)) // when the events happened
	epochs, since := 0, 0                   // whole ones: all, and since the last event
	seen := make([]bool, samples)
	count := 0
	pace := time.NewTicker(every)
	defer pace.Stop()
	for ; ; <-pace.C {
		if len(at) == 0 || since > 0 && time.Since(at[len(at)-1]) > phase {
			if len(at) == len(events) {
				break
			}
			events[len(at)].happens()
			at = append(at, time.Now())
			since = -1 // the epoch under way was begun before
		}
		b, err := stream.Next()
		if err != nil {
			t.Fatalf("%s, after %d epochs and %d samples: %v", events[len(at)-1].name, epochs, count, err)
		}
		for row, pos := range b.Positions {
			if seen[pos] {
				t.Fatalf("epoch %d has sample %d twice", epochs, pos)
			}
			seen[pos] = true
			if !bytes.Equal(b.Blobs[0][row].Bytes(), data[pos]) {
				t.Fatalf("epoch %d: the bytes of sample %d are wrong", epochs, pos)
			}
		}
		count += len(b.Positions)
		b.Release()
		if count == samples { // each is there once
			count = 0
			clear(seen)
			epochs++
			since++
		}
	}
	stats := engine.Stats()
	t.Logf("%d epochs, %d hedges (%d won), %d retries, %d bytes of buffers mapped", epochs, stats.Hedges,
		stats.HedgesWon, stats.Retries, s.buffers.stats().mapped)
}

// importAtOnce imports many blobs.
func importAtOnce(ctx context.Context, s *Store, dataset string, data [][]byte) error {
	in, err := s.Begin(ctx, dataset)
	if err != nil {
		return err
	}
	defer in.Close()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for _, b := range data {
		g.Go(func() error {
			_, err := in.Put(gctx, b)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	snap, err := storetest.Put(ctx, in, data, len(data))
	if err == nil {
		_, err = in.Commit(ctx, snap)
	}
	return err
}
