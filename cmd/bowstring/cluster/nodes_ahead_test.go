package cluster_test

import (
	"errors"
	"io"
	"runtime"
	"testing"

	"bowstring/fetch"
	"bowstring/schema"
)

// A stream that begins is announced to the other nodes. Each brings what it owns of its samples before it is asked.
func TestBringsForOthers(t *testing.T) {
	const n = 1000
	s := newStore(t, n)
	c := newNodes(t, s, 2, clusterOptions{})
	a, b := c.list[0], c.list[1]
	req := schema.Request{Dataset: "d", Shuffle: &schema.Shuffle{Seed: 9}, Batch: 10, Remainder: schema.RemainderUneven}
	j, err := b.engine.Open(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	stream, err := b.engine.Stream(t.Context(), j, schema.Ticket{Request: j.Request(), Epochs: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for len(a.engine.Stats().Jobs) == 0 { // the stream was announced as it began
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	owned := 0
	for i := range n {
		if a.tier.Owns(schema.RefOf(content(i))) {
			owned++
		}
	}
	for a.spill.Stats().Entries < int64(owned) {
		b.tier.SendProgress(b.engine.Progress())
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	if jobs := a.engine.Stats().Jobs; len(jobs) != 1 || jobs[0].Elsewhere != 1 || jobs[0].Streams != 0 {
		t.Fatalf("the jobs known are %+v, want one, of a stream elsewhere", jobs)
	}
	before := s.blobs.Load()
	var batch *fetch.Batch
	for err == nil {
		if batch, err = stream.Next(); err == nil {
			batch.Release()
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if st := a.engine.Stats(); st.Reads > int64(owned)+5+st.Retries {
		t.Errorf("node a has made %d reads of the store, and owns %d blobs; %d attempts again", st.Reads, owned, st.Retries)
	}
	t.Logf("%d of %d blobs were read after the first %d", s.blobs.Load()-before, n, before)
	stream.Close()
	// it learns that the stream has ended
	for len(a.engine.Stats().Jobs) > 0 && a.engine.Stats().Jobs[0].Elsewhere > 0 {
		b.tier.SendProgress(b.engine.Progress())
		runtime.Gosched()
	}
}
