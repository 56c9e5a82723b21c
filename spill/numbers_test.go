package spill

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// modelCache is a cache on a model, whose clock the test sets.
func modelCache(t *testing.T, log *strings.Builder) (c *Cache, clock *Time) {
	t.Helper()
	clock = new(Time)
	*clock = Time(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	c = openCache(t, Options{Bytes: 24 << 20, Model: &segment.Model{Bytes: func(n int64) []byte { return make([]byte, n) }, Wait: func(segment.Op, int64) {}}, Policy: LRU(),
		Clock: func() Time { return *clock }, Logger: slog.New(slog.NewTextHandler(log, nil))})
	t.Cleanup(func() { closeCache(t, c) })
	return c, clock
}

// small is blob number i, of a few bytes.
func small(i int) ([]byte, schema.BlobRef) {
	data := fmt.Appendf(nil, "blob %d", i)
	return data, schema.RefOf(data)
}

// A server that has seen more snapshots than there are numbers, one after the other, keeps the blobs of the next.
func TestSnapshotsComeAndGo(t *testing.T) {
	log := &strings.Builder{}
	c, clock := modelCache(t, log)
	const most = MaxDatasets + 3000
	stored := 0 // of the last: space is given back behind, so a few find none
	for i := range most {
		n := c.Dataset(fmt.Sprint("d@", i))
		if n == 0 || n >= MaxDatasets {
			t.Fatalf("snapshot %d has number %d", i, n)
		}
		data, ref := small(i)
		if c.Put(ref, Place{Dataset: n, Position: 1}, 1e6, data) && i >= MaxDatasets {
			stored++
		}
		*clock += Time(time.Second)
	}
	if st := c.Stats(); stored < 2000 || st.Unnamed != 0 || st.Stored < most/2 || log.Len() > 0 {
		t.Errorf("%d of the last stored, %d of all, %d without a number; %s", stored, st.Stored, st.Unnamed, log)
	}
	// Blobs are counted for their dataset.
	for name, d := range c.Stats().Datasets {
		if d.Entries > 1 || d.Stored > 1 {
			t.Fatalf("%s: %+v", name, d)
		}
	}
}

// A number is given to another name only where nothing has use for it. If there is none, that is counted and logged.
func TestNumbersInUseStay(t *testing.T) {
	log := &strings.Builder{}
	c, clock := modelCache(t, log)
	numbers := map[string]uint32{}
	name := func(name string) uint32 {
		n := c.Dataset(name)
		numbers[name] = n
		return n
	}
	data, ref := small(0)
	c.Put(ref, Place{Dataset: name("kept")}, 1e6, data)
	name("used")
	for i := len(numbers); i < MaxDatasets-1; i++ {
		name(fmt.Sprint("old@", i))
	}
	used := map[string]bool{"used": true}
	c.SetInUse(func() map[string]bool { return used })
	if n := c.Dataset("new@0"); n != 0 {
		t.Fatalf("all names were asked for a moment ago, and another one has number %d", n)
	}
	if st := c.Stats(); st.Unnamed != 1 || !strings.Contains(log.String(), "all numbers of snapshots are in use") ||
		!strings.Contains(log.String(), "snapshot=new@0") {
		t.Errorf("%d without a number; %q", st.Unnamed, log)
	}
	*clock += Time(2 * time.Minute)
	given := map[uint32]string{numbers["kept"]: "kept", numbers["used"]: "used"}
	for i := range MaxDatasets - 3 {
		n := c.Dataset(fmt.Sprint("new@", i))
		if other, taken := given[n]; n == 0 || taken {
			t.Fatalf("new@%d has number %d, of %s", i, n, other)
		}
		given[n] = c.DatasetName(n)
	}
	*clock += Time(2 * time.Second)
	if n := c.Dataset("one more"); n != 0 {
		t.Errorf("it has number %d, of %s", n, given[n])
	}
	if c.Dataset("kept") != numbers["kept"] || c.Dataset("used") != numbers["used"] {
		t.Error("a number has changed that was in use")
	}
	// Names from other nodes have a part of the numbers.
	*clock += Time(2 * time.Minute)
	used = nil
	for i := range 200 {
		if n := c.DatasetWithin(fmt.Sprint("another node's ", i), 100); n >= 100 {
			t.Fatalf("number %d", n)
		}
	}
}

// Names that many want at once have one number each.
func TestNumbersWantedAtOnce(t *testing.T) {
	c, clock := modelCache(t, &strings.Builder{})
	for i := range MaxDatasets {
		c.Dataset(fmt.Sprint("old@", i))
	}
	*clock += Time(2 * time.Minute)
	c.SetInUse(func() map[string]bool { return nil })
	got := make([][]uint32, 8)
	var all sync.WaitGroup
	for g := range got {
		all.Go(func() {
			for i := range 200 {
				got[g] = append(got[g], c.Dataset(fmt.Sprint("new@", i)))
				if i%50 == 0 {
					c.Stats()
				}
			}
		})
	}
	all.Wait()
	owners := map[uint32]int{}
	for g := range got {
		for i, n := range got[g] {
			if n == 0 || n != got[0][i] {
				t.Fatalf("new@%d has number %d and %d", i, n, got[0][i])
			}
			if other, ok := owners[n]; ok && other != i {
				t.Fatalf("new@%d and new@%d have number %d", i, other, n)
			}
			owners[n] = i
		}
	}
}

// A cache that is opened again has the numbers of what is in it, and gives the others away.
func TestNumbersOutliveTheProcess(t *testing.T) {
	opts := testOptions(t.TempDir())
	now := Time(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	opts.Clock = func() Time { return now }
	c := openCache(t, opts)
	for i := range MaxDatasets {
		c.Dataset(fmt.Sprint("old@", i))
	}
	data, ref := small(7)
	kept := c.Dataset("old@7")
	c.Put(ref, Place{Dataset: kept}, 1e6, data)
	now += Time(2 * time.Minute)
	n := c.Dataset("new@1")
	closeCache(t, c)
	c = openCache(t, opts)
	defer closeCache(t, c)
	if again := c.Dataset("new@1"); n == 0 || again != n {
		t.Errorf("new@1 has number %d, and then %d", n, again)
	}
	if again := c.Dataset("old@7"); again != kept || c.Stats().Datasets["old@7"].Entries != 1 {
		t.Errorf("old@7 has number %d, and then %d; %+v", kept, again, c.Stats().Datasets["old@7"])
	}
}
