//go:build cassandra

package faults

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gocql/gocql"

	"bowstring/fetch/store/cql"
	"bowstring/internal/cassandratest"
)

var (
	length  = flag.Duration("length", 0, "for how long there are faults; the test is skipped without")
	seed    = flag.Uint64("seed", 0, "what the schedule and the processes are drawn from; 0 for any")
	keep    = flag.String("keep", "", "a folder for logs and histories of runs that fail; default a temporary one")
	address = flag.String("address", "", "a store's address, on a cluster that runs: only the processes are then "+
		"killed and stopped")
)

func init() { atEnd = cassandratest.Stop }

// TestFaults: whatever happens to nodes, network, clocks and processes, nothing
// that was committed is lost, doubled or torn.
func TestFaults(t *testing.T) {
	if *length == 0 {
		t.Skip("takes minutes: make test-faults, or -args -length=60s")
	}
	if *seed == 0 {
		*seed = rand.Uint64N(1<<32) + 1
	}
	dir := folder(t)
	t.Logf("seed %d, for %s, in %s", *seed, *length, dir)
	n := &nemesis{t: t}
	at := *address
	if at == "" {
		n.cluster = startCluster(t, dir)
		n.cluster.checkClocks(t)
		at = n.cluster.address()
	}
	quiet := slog.New(slog.DiscardHandler)
	if err := cql.Init(t.Context(), at, cql.InitOptions{Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	schedule := NewSchedule(*seed, *length, cast)
	t.Logf("what goes wrong:\n%s", schedule)
	n.workers = startWorkers(t, dir, at, *seed)
	n.begun = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), *length)
	defer cancel()
	n.run(ctx, schedule)
	<-ctx.Done()
	n.heal(t)
	n.workers.stop(45 * time.Second)
	t.Logf("%.0f s after the beginning all is well again", time.Since(n.begun).Seconds())
	finish(t, dir, at)
	judge(t, dir)
}

// folder is where logs and histories go. It is removed if the test passes.
func folder(t *testing.T) string {
	dir, err := os.MkdirTemp(*keep, "faults-")
	if *keep != "" && err != nil {
		if err = os.MkdirAll(*keep, 0o700); err == nil {
			dir, err = os.MkdirTemp(*keep, "faults-")
		}
	}
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "history"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir)
		}
	})
	return dir
}

// heal waits until each node answers. The schedule has ended all faults.
func (n *nemesis) heal(t *testing.T) {
	if n.cluster == nil {
		return
	}
	lost := int64(0)
	for i, node := range n.cluster.nodes {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		if err := node.Wait(ctx); err != nil {
			t.Fatalf("node %d after all faults: %v", i+1, err)
		}
		cancel()
		lost += n.cluster.between[i].Lost()
	}
	t.Logf("%d frames between nodes were lost", lost)
}

// patience is for a cluster that has just been healed: for how long what fails is tried again.
const patience = 4 * time.Minute

// finish has two readers read all that is left, before and after a collection, drops
// it, collects, and counts what is stored then.
func finish(t *testing.T, dir, at string) {
	t.Helper()
	history := filepath.Join(dir, "history")
	judge := openFinal(t, history, "final-0", at)
	healed, err := judge.Begin(Event{Do: Healed})
	if err != nil {
		t.Fatalf("%+v: %v", healed, err)
	}
	readers := []*process{judge, openFinal(t, history, "final-1", at)}
	for round := range 2 {
		for _, r := range readers {
			r.readAll(t)
		}
		if round == 0 {
			judge.collectUntil(t, func(int64) bool { return true })
		}
	}
	judge.dropAll(t)
	for _, r := range readers {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
	last := openFinal(t, history, "final-2", at)
	defer last.close()
	last.collectUntil(t, func(dead int64) bool { return dead == 0 })
	if err := last.count(t, at); err != nil {
		t.Fatal(err)
	}
}

func openFinal(t *testing.T, history, name, at string) *process {
	t.Helper()
	p := &process{processConfig: processConfig{Name: name, History: history, Address: at}, tagged: map[string]bool{}}
	p.rand = rand.New(rand.NewPCG(1, 4))
	if err := p.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// readAll reads each snapshot, again until it is known what was found.
func (p *process) readAll(t *testing.T) {
	t.Helper()
	for name, numbers := range p.listNow(t) {
		for _, n := range numbers {
			if err := p.read(t.Context(), name, n); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (p *process) listNow(t *testing.T) map[string][]int64 {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		all, err := p.list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if all != nil {
			return all
		}
	}
	t.Fatal("the cluster does not list its datasets when all is well")
	return nil
}

// damaging is after how many collections that find something missing no other is tried.
const damaging = 3

func (p *process) collectUntil(t *testing.T, done func(dead int64) bool) {
	t.Helper()
	damaged := 0
	for end := time.Now().Add(patience); time.Now().Before(end); {
		r, damage, err := p.collect(t.Context(), patience)
		if err != nil {
			t.Fatal(err)
		}
		if r != nil && done(r.DeadBlobs) {
			t.Logf("a collection found %+v", *r)
			return
		}
		if damage != "" {
			damaged++
		}
		if damaged == damaging {
			t.Error("something is missing, and collections do not come to their end")
			return
		}
		p.pause(t.Context(), time.Second)
	}
	t.Error("no collection comes to its end when all is well")
}

func (p *process) dropAll(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		left := 0
		for name, numbers := range p.listNow(t) {
			for _, tag := range []string{"prod", "best"} {
				if err := p.untag(t.Context(), name, tag); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range numbers {
				left++
				if err := p.drop(t.Context(), name, n); err != nil {
					t.Fatal(err)
				}
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d snapshots cannot be dropped", left)
		}
	}
}

// count records how many rows with bytes are left, read from all replicas.
func (p *process) count(t *testing.T, at string) error {
	config, err := cql.ParseURI(at)
	if err != nil {
		return err
	}
	cl := gocql.NewCluster(config.Hosts...)
	cl.Port, cl.Keyspace, cl.Timeout, cl.Consistency = config.Port, config.Keyspace, 30*time.Second, gocql.All
	cl.ProtoVersion = 4
	session, err := cl.CreateSession()
	if err != nil {
		return err
	}
	defer session.Close()
	return p.do(t.Context(), Event{Do: Left}, func(_ context.Context, e *Event) (string, error) {
		var key []byte
		var size *int64
		var touched int
		iter := session.Query("SELECT key, size FROM blobs").Iter()
		for iter.Scan(&key, &size) {
			if size == nil {
				touched++
				continue
			}
			e.Count++
		}
		if err := iter.Close(); err != nil {
			return Info, err
		}
		var part int
		iter = session.Query("SELECT key, part FROM blob_parts").Iter()
		for iter.Scan(&key, &part) {
			e.Count++
		}
		t.Logf("%d rows with bytes are left, and %d without", e.Count, touched)
		return OK, iter.Close()
	})
}

// judge checks the history, and that it has enough to show something.
func judge(t *testing.T, dir string) {
	t.Helper()
	events, err := ReadHistory(filepath.Join(dir, "history"))
	if err != nil {
		t.Fatal(err)
	}
	anomalies, stats := Check(events)
	t.Log(stats)
	reasons(t, events)
	for i, a := range anomalies {
		if i == 20 {
			t.Errorf("and %d more", len(anomalies)-i)
			break
		}
		if a.At > 0 {
			t.Errorf("%.1f s after the first event: %v", float64(a.At-events[0].At)/1e9, a)
			continue
		}
		t.Error(a)
	}
	if stats.Numbers < 5 || stats.Reads < 20 {
		t.Error("so little was done that it shows nothing")
	}
	for _, must := range []string{"commit ok", "drop ok", "tag ok", "tagged ok", "collect ok", "read ok", "left ok"} {
		if stats.Ended[must] == 0 {
			t.Errorf("there is no %s", must)
		}
	}
	if t.Failed() {
		t.Logf("logs and history are in %s", dir)
	}
}

// reasons says why operations were not done, or not known to be: what a run lacks is
// mostly found there.
func reasons(t *testing.T, events []Event) {
	const shown, long = 12, 160
	count := map[string]int{}
	for _, e := range events {
		if e.Error != "" {
			count[fmt.Sprintf("%s %s: %.*s", e.Do, e.Type, long, e.Error)]++
		}
	}
	most := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(count[b]-count[a], strings.Compare(a, b))
	})
	for _, why := range most[:min(shown, len(most))] {
		t.Logf("%4d times %s", count[why], why)
	}
}
