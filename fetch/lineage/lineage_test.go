package lineage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// allPieces returns the pieces of streams for which match returns true.
func allPieces(l *Log, match func(*Head) bool) ([]*Piece, error) {
	return l.Search(context.Background(), Query{Match: match})
}

func headOf(order string, served []byte) Head {
	return Head{Job: "j", Plan: "p", Ticket: schema.Ticket{Request: schema.Request{Dataset: "d", Snapshot: 1,
		Order: order}, Served: served}}
}

// rowsOf lists rows that were handed out, one by one.
func rowsOf(t *testing.T, p *Piece, from, to int64) (rows []int64) {
	t.Helper()
	list, err := p.Served(from, to)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		for row := r.From; row < r.To; row++ {
			rows = append(rows, row)
		}
	}
	return rows
}

// Rows in any order are recorded in that order, from any row on, also for a stream that
// resumes another.
func TestAnyOrderIsRecorded(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	for round := range 200 {
		l := must(Open(Options{Dir: filepath.Join(dir, fmt.Sprint(round)), Logger: quiet}))
		var gone []byte
		n := 1 + rng.Int64N(3000)
		for range rng.IntN(20) {
			gone = append(gone, byte(rng.Uint32()))
		}
		gone = bytes.TrimRight(append(gone, 0), "\x00")
		var left []int64
		for row := range n {
			if row/8 >= int64(len(gone)) || gone[row/8]>>(row%8)&1 == 0 {
				left = append(left, row)
			}
		}
		r := l.Begin(headOf("free", gone))
		var want []int64
		far := 1 + rng.IntN(400)
		for len(left) > 0 {
			var b Batch
			if rng.IntN(3) == 0 { // in order
				k := 1 + rng.IntN(len(left))
				b.Rows, want, left = int64(k), append(want, left[:k]...), left[k:]
				r.Batch(b)
				continue
			}
			var keep []int64
			density := rng.Float64()
			for i, row := range left {
				if i < far && rng.Float64() < density || i == 0 && rng.IntN(2) == 0 {
					b.Seqs = append(b.Seqs, row)
				} else {
					keep = append(keep, row)
				}
			}
			if len(b.Seqs) == 0 {
				continue
			}
			left, b.Rows, want = keep, int64(len(b.Seqs)), append(want, b.Seqs...)
			r.Batch(b)
		}
		pieces := must(allPieces(l, func(*Head) bool { return true }))
		if len(want) == 0 {
			if len(pieces) > 0 {
				t.Fatalf("%d pieces of nothing", len(pieces))
			}
		} else if p := pieces[0]; len(pieces) != 1 || p.Rows != int64(len(want)) {
			t.Fatalf("%d pieces, the first of %d rows; want one of %d", len(pieces), p.Rows, len(want))
		} else {
			for range 3 {
				from := rng.IntN(len(want))
				to := from + rng.IntN(len(want)-from+1)
				if got := rowsOf(t, p, int64(from), int64(to)); !slices.Equal(got, want[from:to]) {
					t.Fatalf("rows %d to %d: %v, want %v", from, to, got, want[from:to])
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A stream in its order takes a ticket and a count, however long it is.
func TestInOrderIsACount(t *testing.T) {
	l := must(Open(Options{Dir: t.TempDir(), Logger: quiet}))
	defer l.Close()
	for _, order := range []string{"strict", "free"} {
		_, before := l.Kept()
		r := l.Begin(headOf(order, nil))
		r.Batch(Batch{Rows: 1 << 40})
		_, first := l.Kept()
		for range 1000 {
			r.Batch(Batch{Rows: 64})
		}
		if _, bytes := l.Kept(); bytes != first || first-before > 400 {
			t.Errorf("%s: %d bytes, then %d", order, first-before, bytes-before)
		}
		pieces := must(allPieces(l, func(h *Head) bool { return h.Ticket.Order == order }))
		if got := rowsOf(t, pieces[0], 1<<40+5, 1<<40+8); pieces[0].Rows != 1<<40+64000 ||
			!slices.Equal(got, []int64{1<<40 + 5, 1<<40 + 6, 1<<40 + 7}) {
			t.Errorf("%s: %d rows, %v", order, pieces[0].Rows, got)
		}
	}
}

// The files stay within MaxBytes. Each remaining file can be read by itself, and the
// oldest is gone.
func TestRecordIsARing(t *testing.T) {
	dir := t.TempDir()
	at := time.Unix(1e9, 0)
	l := must(Open(Options{Dir: dir, MaxBytes: leastBytes, Logger: quiet, Now: func() time.Time { return at }}))
	defer l.Close()
	const streams = 5
	var recorders []*Recorder
	for i := range streams {
		h := headOf("free", nil)
		h.Ticket.Rank = i
		recorders = append(recorders, l.Begin(h))
	}
	for step := range int64(20_000) {
		at = at.Add(time.Second)
		for i, r := range recorders {
			next := headOf("free", []byte{2}).Ticket // row 1 is gone
			next.Rank, next.Step = i, step+1
			seqs := []int64{2*step + 1}
			if step > 0 {
				seqs = []int64{2*step - 2, 2*step + 1}
			}
			r.Batch(Batch{Rows: int64(len(seqs)), Seqs: seqs, Next: next})
		}
	}
	var onDisk int64
	for _, e := range must(os.ReadDir(dir)) {
		onDisk += must(e.Info()).Size()
	}
	since, kept := l.Kept()
	if onDisk > leastBytes || kept != onDisk || kept < leastBytes/2 {
		t.Errorf("%d bytes on disk, %d by its own count, want up to %d", onDisk, kept, leastBytes)
	}
	if pieces := must(allPieces(l, func(h *Head) bool {
		return h.Ticket.Step == 0
	})); len(pieces) != 0 || !since.After(time.Unix(1e9, 0).Add(time.Hour)) {
		t.Errorf("%d pieces from the beginning, on record since %s", len(pieces), since)
	}
	pieces := must(allPieces(l, func(*Head) bool { return true }))
	var last [streams]int64
	for _, p := range pieces {
		h := p.Head.Ticket
		if h.Step < last[h.Rank] || p.Rows%2 != 0 {
			t.Fatalf("a piece of rank %d from step %d with %d rows, after step %d", h.Rank, h.Step, p.Rows,
				last[h.Rank])
		}
		last[h.Rank] = h.Step + p.Rows/2
		if got := rowsOf(t, p, 0, 4); !slices.Equal(got, []int64{0, 3, 2, 5}) {
			t.Fatalf("a piece begins with rows %v", got)
		}
	}
	for rank, step := range last {
		if step != 20_000 {
			t.Errorf("rank %d is on record to step %d", rank, step)
		}
	}
}

// A search takes at most the memory that it is allowed. It ends when its caller's context
// ends, also while it waits for another search. Pieces that are only summed are not kept.
func TestSearchIsBounded(t *testing.T) {
	l := must(Open(Options{Dir: t.TempDir(), MaxBytes: 8 << 20, Logger: quiet}))
	defer l.Close()
	const streams = 2000
	for i := range streams {
		h := headOf("free", nil)
		h.Job = fmt.Sprint("job ", i)
		r := l.Begin(h)
		r.Batch(Batch{Rows: 3, Seqs: []int64{1, 3, 5}})
		r.Batch(Batch{Rows: 2})
	}
	all := func(*Head) bool { return true }
	if _, err := l.Search(t.Context(), Query{Match: all, MaxBytes: streams * headBytes}); !errors.Is(err, schema.ErrLimit) {
		t.Errorf("%d pieces: %v", streams, err)
	}
	if list, err := l.Search(t.Context(), Query{Match: func(h *Head) bool { return h.Job == "job 7" },
		MaxBytes: 4 * headBytes}); err != nil || len(list) != 1 || list[0].Rows != 5 {
		t.Errorf("%d pieces, %v", len(list), err)
	}
	var rows int64
	turns := 0
	list, err := l.Search(t.Context(), Query{Sum: func(*Head) *int64 { return &rows }, MaxBytes: 1,
		Turn: func(f func() error) error { turns++; return f() }})
	if err != nil || len(list) > 0 || rows != 5*streams || turns < 1 {
		t.Errorf("%d rows and %d pieces in %d turns, %v", rows, len(list), turns, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	inTurn, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var first sync.Once
	go func() {
		_, err := l.Search(t.Context(), Query{Match: all, Turn: func(f func() error) error {
			first.Do(func() {
				inTurn <- struct{}{}
				<-goOn
			})
			return f()
		}})
		ended <- err
	}()
	<-inTurn // it has the record
	cancel()
	if _, err := l.Search(ctx, Query{Match: all}); !errors.Is(err, context.Canceled) {
		t.Errorf("a look that waits, whose caller has gone: %v", err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// After a crash of the machine the log reads a file up to its last whole record, and does
// not append to it.
func TestTornFile(t *testing.T) {
	dir := t.TempDir()
	l := must(Open(Options{Dir: dir, Logger: quiet}))
	r := l.Begin(headOf("free", nil))
	r.Batch(Batch{Rows: 3, Seqs: []int64{0, 2, 4}})
	r.Batch(Batch{Rows: 2, Seqs: []int64{1, 6}})
	if _, err := Open(Options{Dir: dir, Logger: quiet}); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("a second one at the same time: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r.Batch(Batch{Rows: 1, Seqs: []int64{3}}) // the stream outlives the record
	name := must(filepath.Glob(filepath.Join(dir, "*"+suffix)))[0]
	whole := must(os.ReadFile(name))
	for cut := range len(whole) + 1 {
		if err := os.WriteFile(name, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		s := &segment{file: must(os.Open(name))}
		pieces, err := s.read(func(*Head) bool { return true })
		if err != nil || len(pieces) > 1 || cut == len(whole) && pieces[0].Rows != 5 {
			t.Fatalf("cut at %d of %d: %v, %d pieces", cut, len(whole), err, len(pieces))
		}
		if len(pieces) == 1 && !slices.Equal(rowsOf(t, pieces[0], 0, 9), []int64{0, 2, 4, 1, 6}[:pieces[0].Rows]) {
			t.Fatalf("cut at %d: %v", cut, rowsOf(t, pieces[0], 0, 9))
		}
		s.close()
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 { // damage: what is believed was written so
		bad := bytes.Clone(whole)
		bad[16+rng.IntN(len(bad)-16)] ^= 1 << rng.IntN(8)
		if err := os.WriteFile(name, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s := &segment{file: must(os.Open(name))}
		pieces, err := s.read(func(*Head) bool { return true })
		if err != nil || len(pieces) == 1 && !slices.Equal(rowsOf(t, pieces[0], 0, 9),
			[]int64{0, 2, 4, 1, 6}[:pieces[0].Rows]) {
			t.Fatalf("%v, %+v", err, pieces)
		}
		s.close()
	}
	l = must(Open(Options{Dir: dir, Logger: quiet}))
	defer l.Close()
	l.Begin(headOf("strict", nil)).Batch(Batch{Rows: 1})
	if n := len(must(filepath.Glob(filepath.Join(dir, "*"+suffix)))); n != 2 {
		t.Errorf("%d files", n)
	}
}

// A failing disk ends no stream. Records that could not be written are missing, and later
// ones are there.
func TestDiskFails(t *testing.T) {
	dir := t.TempDir()
	var said strings.Builder
	at := time.Unix(1e9, 0)
	l := must(Open(Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(&said, nil)), Now: func() time.Time {
		return at
	}}))
	defer l.Close()
	r := l.Begin(headOf("strict", nil))
	step := func(n int64) schema.Ticket {
		tk := headOf("strict", nil).Ticket
		tk.Step = n
		return tk
	}
	r.Batch(Batch{Rows: 10, Next: step(1)})
	was := l.list[0].file
	l.list[0].file = must(os.Open(l.path(l.list[0]))) // cannot be written
	r.Batch(Batch{Rows: 10, Next: step(2)})
	r.Batch(Batch{Rows: 10, Next: step(3)})
	l.list[0].file.Close()
	l.list[0].file = was
	r.Batch(Batch{Rows: 10, Next: step(4)}) // not tried again so soon
	at = at.Add(2 * pause)
	r.Batch(Batch{Rows: 10, Next: step(5)})
	pieces := must(allPieces(l, func(*Head) bool { return true }))
	if len(pieces) != 2 || pieces[0].Rows != 10 || pieces[1].Rows != 10 || pieces[1].Head.Ticket.Step != 4 {
		t.Errorf("%+v", pieces)
	}
	if n := strings.Count(said.String(), "level=ERROR"); n != 1 ||
		!strings.Contains(said.String(), "is recorded again") {
		t.Errorf("%s", &said)
	}
	// A ticket that is too long for the record does not cost the records of other
	// streams.
	h := headOf("strict", nil)
	h.Ticket.Where = strings.Repeat("x", 64<<20/files)
	long := l.Begin(h)
	long.Batch(Batch{Rows: 1, Next: h.Ticket})
	long.Batch(Batch{Rows: 1, Next: h.Ticket})
	r.Batch(Batch{Rows: 5})
	if pieces := must(allPieces(l, func(*Head) bool { return true })); len(pieces) != 2 || pieces[1].Rows != 15 {
		t.Errorf("%+v", pieces)
	}
	for _, o := range []Options{{}, {Dir: dir, MaxBytes: 5}, {Dir: dir, PieceBytes: -1}} {
		if _, err := Open(o); !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Any bytes are runs or an error.
func FuzzRuns(f *testing.F) {
	f.Add(encodeRuns([]run{{1, 2}, {3, 4}}))
	f.Add([]byte{asBitmap, 0x5a, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodeRuns(b)
		if err != nil {
			return
		}
		again := must(decodeRuns(encodeRuns(list)))
		var n, m int64
		for _, r := range list {
			n += r.take
		}
		for _, r := range again {
			m += r.take
		}
		if n != m && len(b) < 100 {
			t.Errorf("%d rows, then %d", n, m)
		}
	})
}
