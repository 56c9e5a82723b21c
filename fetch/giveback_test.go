package fetch_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"bowstring/fetch"
	"bowstring/schema"
)

// An idle stream frees all prefetched data for a stream that has nothing, including the rest of a run of which rows
// were delivered. Later it serves the same rows as without that.
func TestIdleStreamHoldsNothing(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 500)
	for _, order := range []string{"", "window:3", schema.OrderFree} {
		for _, resident := range []int64{0, -1} {
			for _, bytes := range []int64{4000, 6000, 8000} { // of a batch, which then ends in the middle of a run
				t.Run(fmt.Sprintf("order=%s,resident=%d,bytes=%d", order, resident, bytes), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						opts := fetch.Options{WindowBytes: 400_000, Resident: resident, Logger: quiet}
						req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 100,
							Shuffle: &schema.Shuffle{Seed: 1}, Order: order, BatchBytes: bytes}
						stall(t, must(fetch.NewEngine(st, opts)), req)
					})
				})
			}
		}
	}
}

func stall(t *testing.T, e *fetch.Engine, req schema.Request) {
	j := resolve(t, e, req)
	idle := start(t, e, j, ticket(req, 0))
	var held []*fetch.Batch
	var got, want []int64
	for ofBatches(held) < 220_000 { // more than half of what there is
		b := must(idle.Next())
		held, got = append(held, b), append(got, b.Positions...)
	}
	synctest.Wait() // it has read ahead what there is room for
	other := start(t, e, j, ticket(req, 0))
	for range batches(t, other) {
	}
	other.Close()
	const metadata = 82 // bytes of a row
	if used, blobs := e.Stats().WindowUsed, ofBatches(held); used != int64(blobs+metadata*len(got)) {
		t.Errorf("%d bytes are held; want those of %d rows of %d bytes, which were delivered", used, len(got), blobs)
	}
	for _, b := range held {
		b.Release()
	}
	for b := range batches(t, idle) {
		compare(t, j, b)
		got = append(got, b.Positions...)
	}
	idle.Close()
	for i := range j.Plan().Rows() {
		want = append(want, j.Plan().Position(i))
	}
	if req.Order != "" {
		slices.Sort(got)
		slices.Sort(want)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d rows were served, want %d, each once and in the plan's order", len(got), len(want))
	}
	j.Close()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// ofBatches is how many bytes of blobs batches have.
func ofBatches(list []*fetch.Batch) (bytes int) {
	for _, b := range list {
		for _, blob := range b.Blobs[0] {
			bytes += len(blob.Bytes())
		}
	}
	return bytes
}

// If a batch is released while Next begins to wait for memory, Next gets that memory. Otherwise the stream would use it
// for prefetched rows, and Next would wait for as much again.
func TestReleaseDuringNext(t *testing.T) {
	st := newStore(t)
	const n, epochs = 2000, 10
	put(t, st, "d", n)
	e := newEngine(t, st, fetch.Options{WindowBytes: 3500}) // for one sample of the largest
	req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 1}
	j := resolve(t, e, req)
	defer j.Close()
	tk := ticket(req, 0)
	tk.Epochs = epochs
	s := start(t, e, j, tk)
	defer s.Close()
	release := make(chan *fetch.Batch)
	var releasing sync.WaitGroup
	releasing.Go(func() {
		spin := 0
		for b := range release {
			spin = (spin + 7) % 2000 // to meet Next at any point
			for range spin {
				runtime.KeepAlive(b)
			}
			b.Release()
		}
	})
	defer releasing.Wait()
	defer close(release)
	rows := 0
	for {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		rows += len(b.Positions)
		release <- b
	}
	if rows != epochs*n {
		t.Errorf("%d rows, want %d", rows, epochs*n)
	}
}
