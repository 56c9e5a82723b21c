package fetch_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/store/local"
	"bowstring/schema"
)

// TestStreamOverALostManifest cuts the store's segments short under a snapshot that is open. The
// streams fail with a data loss; the process goes on.
func TestStreamOverALostManifest(t *testing.T) {
	dir := t.TempDir()
	s := must(local.Open(dir, local.Options{Logger: quiet}))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	put(t, s, "d", 300)
	e := newEngine(t, s, fetch.Options{})
	requests := []schema.Request{
		{Dataset: "d", Batch: 10},
		{Dataset: "d", Batch: 10, Shuffle: &schema.Shuffle{Seed: 1}},
		{Dataset: "d", Batch: 10, Columns: []string{"label", "name"}},
	}
	var jobs []*fetch.Job
	for _, req := range requests {
		jobs = append(jobs, open(t, e, req))
	}
	files := must(filepath.Glob(filepath.Join(dir, "segments", "*")))
	for _, f := range files {
		if err := os.Truncate(f, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i, j := range jobs {
		st := start(t, e, j, ticket(requests[i], 0))
		b, err := st.Next()
		if err == nil {
			b.Release()
		}
		if !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(), files[0]) {
			t.Errorf("request %d: %v; want a data loss that names %s", i, err, files[0])
		}
		st.Close()
	}
}
