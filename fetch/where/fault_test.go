package where

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// TestEvalOfALostManifest cuts the file short that a manifest is mapped from.
func TestEvalOfALostManifest(t *testing.T) {
	s := testSchema(t)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil),
		strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "chunk")
	m := placedManifest(t, s, func(data []byte) []byte {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		mem, err := unix.Mmap(int(f.Fd()), 0, len(data), unix.PROT_READ, unix.MAP_SHARED)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Munmap(mem); err != nil {
				t.Error(err)
			}
		})
		return mem
	}, rec)
	e, err := Compile(t.Context(), "label == 1", s, now)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := e.Eval(t.Context(), m, now); err != nil || got.Len() != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Eval(t.Context(), m, now); !errors.Is(err, schema.ErrDataLoss) ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("%v; want a data loss that names %s", err, path)
	}
}
