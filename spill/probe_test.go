package spill

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"bowstring/schema"
)

// A probe leaves no file and no byte of the budget behind, evicts nothing, and where there is no
// room there is none.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	c, err := Open(Options{Dir: dir, Bytes: MinBytes + 64<<20, KeepFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data, ref := content(1)
	if !c.Put(ref, Place{Dataset: c.Dataset("d@1")}, 0, data) {
		t.Fatal("a blob was not stored")
	}
	files := func() int {
		list, err := os.ReadDir(filepath.Join(dir, blobsDir))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	held, before := c.Stats().HeldBytes, files()
	p, err := c.Probe(t.Context(), 16<<20)
	if err != nil || p.Bytes != 16<<20 || p.Wrote <= 0 || p.ReadBack <= 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := c.Probe(t.Context(), 1<<40); err != nil || p.Bytes > MinBytes+64<<20 {
		t.Errorf("a probe beyond the budget: %+v, %v", p, err)
	}
	if st := c.Stats(); st.HeldBytes != held || st.Evicted != 0 || files() != before {
		t.Errorf("a probe left %d bytes, %d evictions, %d files", st.HeldBytes-held, st.Evicted, files()-before)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Probe(ended, 16<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("a probe that was cancelled: %v", err)
	}
	c.Resize(MinBytes)
	if c.space.left() >= probePiece {
		c.space.held.Add(c.space.left())
		defer c.space.held.Store(held)
	}
	if _, err := c.Probe(t.Context(), 16<<20); !errors.Is(err, schema.ErrLimit) {
		t.Errorf("a probe without room: %v", err)
	}
}
