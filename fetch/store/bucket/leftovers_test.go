package bucket

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/internal/objecttest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

func leftoversOf(t *testing.T, url string, opts Options) string {
	t.Helper()
	findings, err := Examine(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, f := range findings {
		if f.Check == checkLeftovers || f.Check == checkSegments {
			said = append(said, fmt.Sprint(f))
		}
	}
	return strings.Join(said, "; ")
}

// TestLeftovers: the segments of a killed import, complete or torn, are no garbage until
// its process has lapsed by the server's clock. Then Examine reports them, and a
// collection removes them, also one that arrives late, and nothing else.
func TestLeftovers(t *testing.T) {
	server := startServer(t, objecttest.Config{})
	url := at(server, "bucket")
	found(t, url)
	opts := testOptions()
	opts.Renew, opts.Lapse, opts.SegmentBytes = time.Hour, 2*time.Hour, 64<<10 // nothing lapses but by the server's clock
	s := open(t, url, opts)
	if err := commitOne(t.Context(), s, "kept"); err != nil {
		t.Fatal(err)
	}
	dead, err := Open(t.Context(), url, opts) // a process that will be killed
	if err != nil {
		t.Fatal(err)
	}
	in := must(dead.Begin(t.Context(), "d"))
	data := make([]byte, 40<<10)
	var last schema.BlobRef
	for range 5 {
		data[0]++
		last = must(in.Put(t.Context(), data))
	}
	b := harmed{t, must(object.Open(t.Context(), urlOf(s), opts.Bucket))}
	a, _ := schema.ParseObjectAddress(last.Key)
	name := func(n uint32) string { return s.segmentKey(a.Prefix, n) }
	for n := uint32(0); n < a.Object; { // they are written beside
		if _, err := b.Stat(t.Context(), name(n)); err == nil {
			n++
		} else if err := wait(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	b.tear(name(0), 1000)
	if said := leftoversOf(t, url, opts); strings.Contains(said, "no snapshot names") || !strings.Contains(said, "import at work") {
		t.Errorf("of an import at work: %s", said)
	}
	report, err := s.Store.GC(t.Context(), store.GCOptions{DryRun: true}, nil)
	if err != nil || report.DeadBlobs != 0 {
		t.Errorf("an import at work: %+v, %v", report, err)
	}
	server.SetClock(3 * time.Hour) // by the server it has said nothing for longer than Lapse
	if err := commitOne(t.Context(), s, "more"); err != nil {
		t.Fatal(err)
	}
	if said := leftoversOf(t, url, opts); !strings.Contains(said, fmt.Sprintf("no snapshot names %d segments", a.Object)) {
		t.Errorf("of an import that is dead: %s", said)
	}
	late, _, err := b.Get(t.Context(), name(1), schema.ObjectVersion{}, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if report, err = s.GC(t.Context(), store.GCOptions{}, nil); err != nil || report.DeadBlobs != int64(a.Object) {
		t.Errorf("collected %+v, %v", report, err)
	}
	b.put(name(1), late) // its upload arrives now
	if said := leftoversOf(t, url, opts); !strings.Contains(said, "no snapshot names 1 segments") {
		t.Errorf("of one that came late: %s", said)
	}
	if report, err = s.GC(t.Context(), store.GCOptions{}, nil); err != nil || report.DeadBlobs != 1 {
		t.Errorf("collected %+v, %v", report, err)
	}
	if said := leftoversOf(t, url, opts); strings.Contains(said, "no snapshot names") {
		t.Errorf("when all is collected: %s", said)
	}
	if names, rows, err := readAll(t, url); err != nil || len(rows) == 0 {
		t.Errorf("what was committed: %v, %v", names, err)
	}
	snap, err := storetest.Put(t.Context(), in, [][]byte{[]byte("too late")}, 8)
	if err == nil {
		_, err = in.Commit(t.Context(), snap)
	}
	if err == nil {
		t.Error("an import whose segments were collected has committed")
	}
	if err := errors.Join(in.Close(), dead.Close()); err != nil {
		t.Log(err)
	}
}

// TestProofsLeft: what a proof has left behind goes with a collection when it is old by the server's clock.
func TestProofsLeft(t *testing.T) {
	server := startServer(t, objecttest.Config{})
	url := at(server, "bucket")
	found(t, url)
	s := open(t, url, testOptions())
	b := harmed{t, must(object.Open(t.Context(), urlOf(s), testOptions().Bucket))}
	old, young := s.key(dirProof+"A/counter"), s.key(dirProof+"B/counter")
	b.put(old, []byte("1"))
	server.SetClock(proofsLeft + time.Minute)
	b.put(young, []byte("1"))
	if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Stat(t.Context(), old); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("the old one: %v", err)
	}
	if _, err := b.Stat(t.Context(), young); err != nil {
		t.Errorf("the young one: %v", err)
	}
}

// collectAt counts what a collection would take.
func collectAt(t *testing.T, url string) (report store.GCReport, err error) {
	t.Helper()
	s, err := Open(t.Context(), url, testOptions())
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.GC(t.Context(), store.GCOptions{DryRun: true}, nil)
}
