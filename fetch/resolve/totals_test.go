package resolve_test

import (
	"context"
	"fmt"
	"testing"

	"bowstring/fetch/admission"
	"bowstring/fetch/resolve"
	"bowstring/schema"
)

// reads counts the blobs that are read of a manifest: lists of pages, and pages.
type reads struct{ lists, pages int }

// countReads has the reads of a dataset's manifest counted from now on.
func (f *fixture) countReads(t *testing.T, dataset string) *reads {
	t.Helper()
	snap, err := f.store.Snapshot(t.Context(), dataset, 0)
	if err != nil {
		t.Fatal(err)
	}
	lists := map[schema.Key]bool{}
	for _, c := range snap.Chunks {
		lists[c.Key] = c.Pages > 0
	}
	n := &reads{}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate = func(_ context.Context, ref schema.BlobRef) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if lists[ref.Key] {
			n.lists++
		} else {
			n.pages++
		}
		return nil
	}
	return n
}

// If the statistics suffice, sizes are added up without reading pages, and the sums are
// the same.
func TestTotalsOfPagesThatAreNotRead(t *testing.T) {
	const n = 5000 // five pages, of which the last has 904 rows
	train := int64(n * 9 / 10)
	size := func(pos int64, columns []string) (sum int64) {
		for _, c := range columns {
			switch c {
			case "label", "position", "image.size":
				sum += 8
			case "name":
				sum += int64(len(fmt.Sprintf("s%d", pos)))
			case "image":
				sum += int64(len(fmt.Sprint("d", pos)))
			case "id":
				sum += 16
			case "split":
				sum += map[bool]int64{true: 5, false: 3}[pos < train]
			}
		}
		return sum
	}
	all := []string{"id", "label", "name", "image", "position", "split", "image.size"}
	f := newFixture(t, resolve.Options{Resident: -1}, admission.Limits{})
	f.put(t, "d", n)
	for _, c := range []struct {
		request    schema.Request
		start, end int64
		want       reads
	}{
		{schema.Request{Columns: all}, 0, n, reads{lists: 1}},
		{schema.Request{Columns: []string{"image", "position", "split"}}, 0, n, reads{}},
		{schema.Request{Columns: all, Split: "train"}, 0, train, reads{1, 1}},
		{schema.Request{Columns: all, Where: "position in 1024..2047"}, 1024, 2048, reads{lists: 1}},
		{schema.Request{Columns: all, Where: `position < 1500 and split == "train"`}, 0, 1500, reads{1, 1}},
		{schema.Request{Columns: []string{"image"}, Where: "position >= 0 and label >= 0"}, 0, n, reads{lists: 1}},
		{schema.Request{Columns: []string{"image"}, Where: "label > 9 or name == nil"}, 0, 0, reads{lists: 1}},
	} {
		f.CloseIdle() // nothing is in memory
		got := f.countReads(t, "d")
		c.request.Dataset = "d"
		j := f.open(t, c.request)
		total, err := f.TotalBytes(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		var want int64
		for pos := c.start; pos < c.end; pos++ {
			want += size(pos, c.request.Columns)
		}
		if rows := j.Plan().Rows(); rows != c.end-c.start || total != want {
			t.Errorf("%+v: %d rows of %d bytes, want %d of %d", c.request, rows, total, c.end-c.start, want)
		}
		f.mu.Lock()
		if *got != c.want {
			t.Errorf("%+v: %+v were read, want %+v", c.request, *got, c.want)
		}
		f.mu.Unlock()
		j.Close()
	}
}
