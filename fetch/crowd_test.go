package fetch_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/fetch/operators"
	"bowstring/schema"
)

var (
	crowdSeed  = flag.Uint64("crowd-seed", 0, "the seed of TestCrowdInLittleMemory to run alone; 0 for some")
	crowdSeeds = flag.Uint64("crowd-seeds", 4, "how many seeds TestCrowdInLittleMemory runs")
)

const crowdRows = 150

// crowd is streams of all kinds that share little memory. Their consumers stall, hold batches, and leave at random.
type crowd struct {
	engine *fetch.Engine
	terms  bool // tenants have ceilings

	releasing sync.WaitGroup
}

// putCrowd puts samples of two blob columns, each of which is null now and then, in small pages.
func putCrowd(t *testing.T, st *probe) {
	t.Helper()
	sch := must(schema.NewSchema(nil, []arrow.Field{schema.BlobField("image", "image", true),
		schema.BlobField("mask", "image", true)}))
	w := must(ingest.New(t.Context(), st, ingest.Options{Dataset: "d", Source: "test", Schema: sch, Mode: ingest.Replace,
		PageRows: 16}))
	defer w.Close()
	var ids []schema.ID
	var images, masks [][]byte
	for i := range crowdRows {
		ids, images, masks = append(ids, sampleID("d", i)), append(images, content(i)), append(masks, content(i+1000))
		if i%7 == 3 {
			images[i] = nil
		}
		if i%5 == 3 {
			masks[i] = nil
		}
	}
	rec := array.NewRecord(arrow.NewSchema(nil, nil), nil, crowdRows)
	defer rec.Release()
	if err := w.Write(t.Context(), "train", ids, rec, [][][]byte{images, masks}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Streams that take memory from each other serve each row once, in the order of their plans where it is strict, come to
// their ends, and leave nothing in the ledger: whatever they are of, and whenever their consumers come.
func TestCrowdInLittleMemory(t *testing.T) {
	st := newStore(t)
	putCrowd(t, st)
	first, n := rand.Uint64N(1<<40), *crowdSeeds
	if *crowdSeed != 0 {
		first, n = *crowdSeed, 1
	}
	t.Logf("seeds %d to %d; repeat one with -args -crowd-seed=SEED", first, first+n-1)
	for seed := first; seed < first+n; seed++ {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runCrowd(t, st, seed) })
		}) {
			return
		}
	}
}

func runCrowd(t *testing.T, st *probe, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	opts := withOperators(fetch.Options{WindowBytes: 50_000 + rng.Int64N(100_000), Resident: -rng.Int64N(2),
		Operators: operators.Options{Workers: 1 + rng.IntN(3)}, Logger: quiet, NoHedge: true,
		MaxPrefetch: 256 + rng.Int64N(500), Layouts: fixedLayouts{nodesOf(2)}})
	c := &crowd{terms: rng.IntN(2) == 0}
	if c.terms {
		opts.Terms = someTerms(rng.Int64N(3))
	}
	c.engine = must(fetch.NewEngine(newRemote(st, time.Duration(rng.IntN(30))*time.Millisecond, 0), opts))
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Hour)
	defer cancel()
	var reading sync.WaitGroup
	errs := make([]error, 2+rng.IntN(12))
	for i := range errs {
		own := rand.New(rand.NewPCG(seed, uint64(100+i)))
		reading.Go(func() {
			ctx := fetch.WithCaller(ctx, fetch.Caller{Tenant: fmt.Sprint(own.IntN(3))})
			if own.IntN(6) == 0 {
				errs[i] = c.takes(ctx, own)
			} else {
				errs[i] = c.reads(ctx, own)
			}
		})
	}
	done := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		for c.terms {
			select {
			case <-done:
				return
			case <-time.After(time.Duration(rng.IntN(4000)) * time.Millisecond):
				c.engine.SetTerms(someTerms(rng.Int64N(4)))
			}
		}
	})
	reading.Wait()
	close(done)
	changing.Wait()
	c.releasing.Wait()
	synctest.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	for _, a := range c.engine.Ledger().Accounts() {
		of := a.Use == admission.Windows.String() || a.Use == admission.Making.String()
		if of && a.Used != 0 || a.Waiting != 0 {
			t.Errorf("seed %d: in the end %+v", seed, a)
		}
	}
	for i := range 3 {
		if n := c.engine.Ledger().UsedBy(admission.Windows, fmt.Sprint(i)); n != 0 {
			t.Errorf("seed %d: in the end tenant %d has %d bytes", seed, i, n)
		}
	}
	if err := c.engine.Close(); err != nil {
		t.Error(err)
	}
}

// someTerms has some tenant have a ceiling, which is beyond what a sample takes; or none any terms.
func someTerms(which int64) func(string) fetch.Terms {
	if which == 3 {
		return nil
	}
	return func(tenant string) fetch.Terms {
		if tenant == fmt.Sprint(which) {
			return fetch.Terms{Windows: 0.6, Weight: 2}
		}
		return fetch.Terms{Weight: 1}
	}
}

// someRequest is any that is served whole to one rank.
func someRequest(rng *rand.Rand) schema.Request {
	req := schema.Request{
		Dataset: "d", Columns: []string{"image"}, Batch: 1 + rng.Int64N(60), BatchBytes: 1 + rng.Int64N(20_000),
		Order: []string{"", "", schema.OrderFree, "window:3", "window:1"}[rng.IntN(5)], Remainder: schema.RemainderUneven,
	}
	if rng.IntN(5) == 0 {
		req.Assign = schema.AssignLocal
	}
	if rng.IntN(3) == 0 {
		req.Columns = []string{"mask", "image"}
	}
	if rng.IntN(3) > 0 {
		req.Shuffle = &schema.Shuffle{Seed: rng.Uint64()}
	}
	if rng.IntN(3) == 0 {
		list := [][]schema.Step{steps("Decode", "RandomRepeat"), steps("Decode", "Reverse", "RandomBytes", "Crop=700")}
		req.Operators = schema.Operators{"image": {Steps: list[rng.IntN(2)]}}
	}
	return req
}

// dawdle is what consumers do between batches.
func dawdle(rng *rand.Rand) {
	switch rng.IntN(12) {
	case 0:
		time.Sleep(time.Duration(rng.IntN(15_000)) * time.Millisecond)
	case 1, 2:
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
	case 3, 4:
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
	}
}

// release gives a batch back, now or later.
func (c *crowd) release(rng *rand.Rand, b *fetch.Batch) {
	after := time.Duration(rng.IntN(8000)) * time.Millisecond
	if rng.IntN(3) > 0 {
		b.Release()
		return
	}
	c.releasing.Go(func() {
		time.Sleep(after)
		b.Release()
	})
}

// reads reads a ticket, in one or more streams that are closed in the middle.
func (c *crowd) reads(ctx context.Context, rng *rand.Rand) error {
	req := someRequest(rng)
	j, err := c.engine.Open(ctx, req)
	if err != nil {
		return err
	}
	defer j.Close()
	tk := ticket(j.Request(), 0)
	tk.Epochs = 1 + rng.Int64N(3)
	epochs := tk.Epochs
	var got []int64
	for over := false; !over; {
		if over, err = c.readSome(ctx, rng, &tk, &got); err != nil {
			return fmt.Errorf("%+v, after %d rows of %d epochs: %w", req, len(got), epochs, err)
		}
		dawdle(rng)
	}
	if len(got) != int(epochs)*crowdRows {
		return fmt.Errorf("%+v: %d rows of %d epochs", req, len(got), epochs)
	}
	for offset := range epochs {
		some, p := got[offset*crowdRows:][:crowdRows], j.PlanOf(offset)
		var want []int64
		for i := range p.Rows() {
			want = append(want, p.Position(i))
		}
		if req.Order != "" || req.Assign != "" {
			slices.Sort(some)
			slices.Sort(want)
		}
		if !slices.Equal(some, want) {
			return fmt.Errorf("%+v: epoch %d has %v, want %v", req, offset, some, want)
		}
	}
	return nil
}

// readSome reads on, until the end or until the stream is closed. tk goes on after it.
func (c *crowd) readSome(ctx context.Context, rng *rand.Rand, tk *schema.Ticket, got *[]int64) (over bool, err error) {
	j, err := c.engine.Open(ctx, tk.Request)
	if err != nil {
		return false, err
	}
	defer j.Close()
	s, err := c.engine.Stream(ctx, j, *tk)
	if err != nil {
		return false, err
	}
	var closing sync.WaitGroup
	defer closing.Wait()
	defer s.Close()
	if rng.IntN(3) == 0 {
		after := time.Duration(rng.IntN(10_000)) * time.Millisecond
		ended := make(chan struct{})
		defer close(ended)
		closing.Go(func() {
			select {
			case <-ended:
			case <-time.After(after):
				s.Close()
			}
		})
	}
	for n := rng.IntN(200); n > 0; n-- {
		dawdle(rng)
		if rng.IntN(4) == 0 {
			s.Ready()
		}
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if errors.Is(err, context.Canceled) && ctx.Err() == nil {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		*got = append(*got, b.Positions...)
		if err := rightBlobs(j, b); err != nil {
			return false, err
		}
		if *tk, err = schema.ParseTicket(b.Resume.Marshal()); err != nil {
			return false, err
		}
		c.release(rng, b)
	}
	return false, nil
}

// rightBlobs looks whether blobs are those of their rows.
func rightBlobs(j *fetch.Job, b *fetch.Batch) error {
	if len(j.Request().Operators) > 0 {
		return nil
	}
	column := len(j.Request().Columns) - 1 // of the image
	for i, pos := range b.Positions {
		blob := b.Blobs[0][i].Bytes()
		if column == 1 {
			blob = b.Blobs[1][i].Bytes()
		}
		if null := pos%7 == 3; null != (len(blob) == 0) || !null && int64(binary.LittleEndian.Uint64(blob)) != pos &&
			int64(binary.LittleEndian.Uint64(blob)) != pos+1000 {
			return fmt.Errorf("position %d has other bytes", pos)
		}
	}
	return nil
}

// takes reads some positions.
func (c *crowd) takes(ctx context.Context, rng *rand.Rand) error {
	req := someRequest(rng)
	req.Order, req.Assign = "", ""
	j, err := c.engine.Open(ctx, req)
	if err != nil {
		return err
	}
	defer j.Close()
	var want, got []int64
	for range 1 + rng.IntN(400) {
		want = append(want, rng.Int64N(crowdRows))
	}
	s, err := c.engine.Take(ctx, j, want)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		dawdle(rng)
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		got = append(got, b.Positions...)
		c.release(rng, b)
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("%+v: took %v, want %v", req, got, want)
	}
	return nil
}
