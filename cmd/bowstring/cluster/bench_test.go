package cluster_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"bowstring/fetch/plan"
	"bowstring/spill"
	"bowstring/spill/replay"
)

const (
	benchRows  = 4000
	benchRanks = 4
	benchRate  = 40 << 20 // bytes a second of the store
	benchSeed  = 7
)

// report makes the nodes report to each other what their streams do, until the returned
// function is called.
func (c *nodes) report(every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var reporting sync.WaitGroup
	reporting.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			for _, n := range c.list {
				n.tier.SendProgress(n.engine.Progress())
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); reporting.Wait() }
}

// epochs has ranks, shared out over the nodes, read epochs of one job; it returns how long each took, and how
// many reads of the store.
func (c *nodes) epochs(s *counted, epochs int) (took []time.Duration, reads []int64) {
	c.t.Helper()
	for epoch := range epochs {
		seen := make([]atomic.Int32, benchRows)
		began, before := time.Now(), s.blobs.Load()
		var g errgroup.Group
		for rank := range benchRanks {
			g.Go(func() error {
				return c.list[rank%len(c.list)].epoch(c.t, benchSeed, uint64(epoch), rank, benchRanks, seen, nil)
			})
		}
		if err := g.Wait(); err != nil {
			c.t.Fatal(err)
		}
		for pos := range seen {
			if got := seen[pos].Load(); got != 1 {
				c.t.Fatalf("epoch %d: position %d was served %d times", epoch, pos, got)
			}
		}
		took, reads = append(took, time.Since(began)), append(reads, s.blobs.Load()-before)
	}
	return took, reads
}

func sum[T int64 | time.Duration](list []T) (total T) {
	for _, v := range list {
		total += v
	}
	return total
}

// storeRate is benchRate, or with -short so much that the store is no limit.
func storeRate() rate.Limit {
	if testing.Short() {
		return 100 * benchRate
	}
	return benchRate
}

// BenchmarkCluster is a job of four ranks over a store of limited rate: at one node, and at four whose caches hold
// the dataset together.
func BenchmarkCluster(b *testing.B) {
	for range b.N {
		var took [2]time.Duration
		for i, nodes := range []int{1, 4} {
			s := newStore(b, benchRows)
			s.rate = rate.NewLimiter(storeRate(), 1<<20)
			s.delay = 5 * time.Millisecond
			c := newNodes(b, s, nodes, clusterOptions{spillBytes: 36 << 20})
			stop := c.report(50 * time.Millisecond)
			times, reads := c.epochs(s, 4)
			stop()
			for _, n := range c.list {
				c.stop(n)
			}
			took[i] = sum(times[1:])
			b.Logf("%d nodes: epochs took %v, %v reads of the store", nodes, times, reads)
			if nodes > 1 {
				b.ReportMetric(float64(sum(reads))/benchRows, "store_reads")
				b.ReportMetric(float64(sum(reads[1:]))/(3*benchRows), "store_share")
			}
		}
		b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "speedup")
	}
}

// BenchmarkPeerRead is what it costs the processors of both nodes to read a GB by way of the other one, whose cache has
// it.
func BenchmarkPeerRead(b *testing.B) {
	s := newStore(b, benchRows)
	c := newNodes(b, s, 2, clusterOptions{})
	asks, owns := c.list[0], c.list[1]
	for _, n := range c.list {
		n.dir.owners.Store(&[]string{owns.name})
	}
	c.epochs(s, 1)
	run := func(n *node) (bytes, cpu float64) {
		before := processCPU(b)
		for epoch := range 8 {
			if err := n.epoch(b, benchSeed, uint64(epoch), 0, 1, make([]atomic.Int32, benchRows), nil); err != nil {
				b.Fatal(err)
			}
		}
		return 8 * benchRows * blobBytes, (processCPU(b) - before).Seconds()
	}
	for range b.N {
		bytes, here := run(owns)
		_, there := run(asks)
		b.ReportMetric(here/bytes*1e9, "s/GB_own")
		b.ReportMetric(there/bytes*1e9, "s/GB_peer")
	}
	if reads := asks.engine.Stats().PeerReads; reads < benchRows {
		b.Fatalf("%d blobs came from the other node", reads)
	}
}

// processCPU is the time of processors that this process has used.
func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fixedBytes is what a spill takes beside its blobs.
const fixedBytes = spill.MinBytes / 2

// BenchmarkClusterHalf is one job whose nodes' caches hold half of the dataset, beside one cache of their joint size by
// Belady's rule.
func BenchmarkClusterHalf(b *testing.B) {
	const epochs = 6
	for range b.N {
		s := newStore(b, benchRows)
		s.rate = rate.NewLimiter(storeRate(), 1<<20)
		s.delay = 5 * time.Millisecond
		c := newNodes(b, s, 4, clusterOptions{spillBytes: fixedBytes + benchRows*(24<<10)/2/4})
		stop := c.report(50 * time.Millisecond)
		_, reads := c.epochs(s, epochs)
		stop()
		held := 0
		for _, n := range c.list {
			held += int(n.spill.Stats().Entries)
		}
		trace, err := replay.NewTrace([]replay.Job{{Dataset: 1, Order: permutation{}, Epochs: epochs, Speed: 1000}}, 1)
		if err != nil {
			b.Fatal(err)
		}
		best := trace.Optimum(held)
		ours := 1 - float64(sum(reads)-benchRows)/float64(benchRows*(epochs-1))
		b.Logf("%d of %d blobs held, %v reads of the store; hit rate %.3f, by Belady's rule %.3f", held, benchRows,
			reads, ours, best.HitRate())
		b.ReportMetric(ours/best.HitRate(), "belady_ratio")
		b.ReportMetric(float64(held)/benchRows, "held")
	}
}

// permutation is the order of the job's epochs, as the plan has it.
type permutation struct{}

func (permutation) plan(epoch int64) *plan.Plan {
	p, err := plan.New(plan.Config{Selection: plan.All(benchRows), Seed: benchSeed, Epoch: uint64(epoch), Shuffle: true,
		Batch: 64, World: benchRanks, Remainder: plan.Uneven})
	if err != nil {
		panic(err)
	}
	return p
}

func (permutation) Rows() int64 { return benchRows }

func (o permutation) Index(epoch, position int64) (int64, bool) {
	return o.plan(epoch).Index(position)
}

func (o permutation) Position(epoch, index int64) int64 { return o.plan(epoch).Position(index) }
