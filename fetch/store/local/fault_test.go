package local

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/internal/storetest"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// TestCutShortUnderReaders cuts a segment short while a manifest and a blob of it are
// mapped. A reader of these pages gets a SIGBUS, as with a bad sector.
func TestCutShortUnderReaders(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{Logger: testOptions().Logger})
	in, err := s.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := storetest.Put(t.Context(), in, sourceBlobs("cut short"), 100)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := in.Commit(t.Context(), snap)
	if err := errors.Join(err, in.Close()); err != nil {
		t.Fatal(err)
	}
	var chunks []schema.Blob
	for _, c := range committed.Chunks {
		b, err := s.Get(t.Context(), c.BlobRef)
		if err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, b)
	}
	man, err := schema.OpenManifest(committed, chunks)
	if err != nil {
		t.Fatal(err)
	}
	defer man.Close()
	ref, _ := man.Blob(0, 1)
	blob, err := s.Get(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Release()

	file := filepath.Join(dir, segmentsDir, segment.FileName(0))
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	projection, err := schema.NewProjection(committed, []string{"id", "position"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func() error{
		"the check of a blob": func() error { return ref.Check(blob.Bytes()) },
		"a row of a manifest": func() error { _, _, err := man.Page(0).TryBlob(0, 1); return err },
		"a batch": func() error {
			_, err := projection.Assemble(man, []int64{0, 1, 2}, nil)
			return err
		},
		"a chunk": func() error { return man.Page(0).Touch() },
	} {
		if err := read(); !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v; want a data loss that names %s", name, err, file)
		}
	}
	// A later caller does not even get the blob.
	if _, err := s.Get(t.Context(), ref); !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(), file) {
		t.Errorf("get: %v; want a data loss that names %s", err, file)
	}
	if v, err := s.Verify(t.Context(), nil); err != nil || len(v.Damaged) == 0 {
		t.Errorf("verify: %+v, %v", v, err)
	}
}
