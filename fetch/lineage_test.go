package fetch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/lineage"
	"bowstring/schema"
)

// place is a rank's share of a step.
type place struct {
	epoch uint64
	step  int64
	rank  int
}

// held is what somebody got or says of a share.
type held struct {
	positions []int64
	faults    []string
}

func faultText(f fetch.Fault) string {
	f.ID = "" // lineage has none
	return string(must(json.Marshal(f)))
}

// training is a job whose clients note what they receive.
type training struct {
	t    *testing.T
	rng  *rand.Rand
	e    *fetch.Engine
	open func() // has e be another engine, over the same record: a server that was started again
	got  map[place]*held
}

// follow reads what a ticket covers, up to a step where limit is not negative. It is cut off now and then: what was on
// its way is lost, and the client goes on after the last batch that it has received.
func (tr *training) follow(tk schema.Ticket, limit int64) {
	for !tr.serve(&tk, limit) {
		if tr.rng.IntN(4) == 0 {
			tr.open()
		}
	}
}

// serve reads some batches of a ticket, which becomes that of the rest; done at its end.
func (tr *training) serve(tk *schema.Ticket, limit int64) (done bool) {
	t := tr.t
	j := resolve(t, tr.e, tk.Request)
	defer j.Close()
	s := start(t, tr.e, j, *tk)
	defer s.Close()
	receive, lose := 1+tr.rng.IntN(12), tr.rng.IntN(4)
	if tr.rng.IntN(3) == 0 {
		receive = 1 << 30
	}
	for n := 0; n < receive+lose; n++ {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			return n <= receive // or what was lost on the way has to come again
		}
		if err != nil {
			t.Fatalf("%s: %v", tk.Marshal(), err)
		}
		past := limit >= 0 && b.Step >= limit
		if n < receive && !past {
			at := place{b.Epoch, b.Step, b.Rank}
			h := tr.got[at]
			if h == nil {
				h = &held{}
				tr.got[at] = h
			}
			if int64(len(h.positions)) != b.Row {
				t.Fatalf("%s: a batch begins at row %d of its share, of which %d were received", tk.Marshal(), b.Row,
					len(h.positions))
			}
			h.positions = append(h.positions, b.Positions...)
			for _, f := range b.Faults {
				h.faults = append(h.faults, faultText(f))
			}
			*tk = must(schema.ParseTicket(b.Resume.Marshal()))
		}
		b.Release()
		if past && n <= receive && tr.rng.IntN(3) == 0 {
			return true // the server has handed out more than anybody wants, and nothing of that was lost
		}
	}
	return false
}

// Lineage returns exactly the samples that clients received: in any order, with substitutes, over cut streams, restarts
// of the server and changes of the world.
func TestLineageIsWhatWasReceived(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	store := newStore(t)
	const n = 500
	putPages(t, store, "d", n, 50)
	lays := fixedLayouts{nodesOf(3), nodesOf(2)}
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			lineageRound(t, rand.New(rand.NewPCG(rng.Uint64(), 0)), newRemote(store, time.Millisecond, 0), lays, dir)
		})
		if t.Failed() {
			return
		}
	}
}

func lineageRound(t *testing.T, rng *rand.Rand, r *remote, lays fixedLayouts, dir string) {
	req := schema.Request{
		Dataset: "d", Columns: [][]string{{"id", "image"}, {"image", "label"}, {"label"}}[min(rng.IntN(6), 2)],
		Batch: 1 + rng.Int64N(90),
		World: &schema.World{Size: 1 + rng.Int64N(4)}, Shuffle: &schema.Shuffle{Seed: rng.Uint64(),
			Epoch: rng.Uint64N(9)},
		Order: []string{schema.OrderStrict, schema.OrderFree, schema.OrderFree, "window:1",
			"window:3"}[rng.IntN(5)],
		OnError:   schema.OnErrorSkip,
		Remainder: []string{"", schema.RemainderDrop, schema.RemainderPad}[rng.IntN(3)],
		Assign:    []string{"", schema.AssignLocal}[rng.IntN(2)],
		Split:     []string{"", "train"}[rng.IntN(2)],
	}
	if rng.IntN(2) == 0 {
		req.BatchBytes = 1 + rng.Int64N(40_000)
	}
	if req.Order == schema.OrderStrict {
		req.BucketByLength = someBuckets(rng)
		if by := req.BucketByLength; by != nil && by.Balance != nil {
			req.Assign = ""
		}
	}
	if rng.IntN(5) == 0 {
		req.Shuffle = nil
	}
	jitter := rand.New(rand.NewPCG(rng.Uint64(), 0))
	bad := map[schema.Key]bool{}
	r.hook = func(ctx context.Context, ref schema.BlobRef, _ int) error {
		r.mu.Lock()
		d := time.Duration(jitter.ExpFloat64() * float64(10*time.Millisecond))
		r.mu.Unlock()
		if bad[ref.Key] {
			return fmt.Errorf("%w: blob %s", schema.ErrNotFound, ref.Key)
		}
		return pause(ctx, d)
	}
	var log *lineage.Log
	tr := &training{t: t, rng: rng, got: map[place]*held{}}
	pieceBytes := []int64{1, 300, 0}[rng.IntN(3)]
	closeAll := func() {
		if tr.e != nil {
			if err := errors.Join(tr.e.Close(), log.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	tr.open = func() {
		closeAll()
		log = must(lineage.Open(lineage.Options{Dir: dir, PieceBytes: pieceBytes, Logger: quiet}))
		tr.e = must(fetch.NewEngine(r, fetch.Options{
			WindowBytes: []int64{0, 30_000}[rng.IntN(2)], Logger: quiet, Lineage: log, Layouts: lays,
			Resident: []int64{0, -1}[rng.IntN(2)],
		}))
	}
	tr.open()
	defer func() { closeAll() }()
	j := resolve(t, tr.e, req)
	steps, course := j.Plan().Steps(), j.Course()
	for range rng.IntN(4) {
		if ref, ok := refAt(t, j, rng.Int64N(400)); ok {
			bad[ref.Key] = true
		}
	}
	j.Close()
	epochs := int64(1)
	if cut := rng.Int64N(steps + 1); rng.IntN(2) == 0 {
		if req.Shuffle != nil {
			epochs = 1 + rng.Int64N(3)
		}
		tr.ranks(req, 0, nil, epochs, -1)
	} else { // and on with another world, and other nodes
		if req.Order == schema.OrderStrict && rng.IntN(2) == 0 {
			tr.ranks(req, 0, nil, 1, cut)
		} else {
			tr.ranks(req, 0, &cut, 1, -1)
		}
		req.World = &schema.World{Size: 1 + rng.Int64N(4)}
		if req.Assign != "" {
			req.Owners = lays[1].Name()
		}
		tr.ranks(req, cut, nil, 1, -1)
	}
	tr.compare(req, course, epochs, steps)
}

// ranks has all ranks of a job go from a step on.
func (tr *training) ranks(req schema.Request, from int64, stop *int64, epochs, limit int64) {
	for rank := range int(req.WorldSize()) {
		tk := schema.Ticket{Request: req, Rank: rank, Step: from, Stop: stop}
		if stop == nil && limit < 0 && epochs > 1 {
			tk.Epochs = epochs
		}
		workers := int64(1)
		if from == 0 && limit < 0 {
			workers = 1 + tr.rng.Int64N(2)
		}
		for w := range workers {
			tk.Stride, tk.Step = workers, from+w
			tr.follow(tk, limit)
		}
	}
}

// compare asks for all steps.
func (tr *training) compare(req schema.Request, course string, epochs, steps int64) {
	t := tr.t
	pieces, ok, err := tr.e.Recorded(t.Context(), func(h *fetch.PieceHead) bool { return h.Job == course })
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	recorded := map[place]*held{}
	for offset := range epochs {
		epoch := uint64(0)
		if req.Shuffle != nil {
			epoch = req.Shuffle.Epoch + uint64(offset)
		}
		for step := range steps {
			shares, err := tr.e.Lineage(t.Context(), pieces, epoch, step, -1)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range shares {
				if !s.Stands {
					continue
				}
				at := place{epoch, step, s.Rank}
				h := recorded[at]
				if h == nil {
					h = &held{}
					recorded[at] = h
				}
				if s.Row != int64(len(h.positions)) {
					t.Fatalf("epoch %d, step %d, rank %d: a share begins at row %d after %d rows", epoch, step, s.Rank,
						s.Row, len(h.positions))
				}
				h.positions = append(h.positions, s.Positions...)
				for _, f := range s.Faults {
					h.faults = append(h.faults, faultText(f))
				}
			}
		}
	}
	for at, h := range tr.got {
		slices.Sort(h.faults)
		if recorded[at] != nil {
			slices.Sort(recorded[at].faults)
		}
		if !reflect.DeepEqual(h, recorded[at]) {
			t.Fatalf("%s\n%d pieces: %+v received\n%+v\nand lineage says\n%+v", must(json.Marshal(req)), len(pieces),
				at, h, recorded[at])
		}
	}
	if len(recorded) != len(tr.got) {
		t.Fatalf("%s: lineage has %d shares, %d were received", must(json.Marshal(req)), len(recorded), len(tr.got))
	}
}
