package export

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// syncs records what is synced, and fails for names that the test chose.
type syncs struct {
	mu    sync.Mutex
	names []string
	fails string
}

func (s *syncs) sync(f *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := f.Name()
	if i := strings.Index(name, ".tmp"); i >= 0 {
		name = name[i+len(".tmp"):]
	}
	s.names = append(s.names, name)
	if s.fails != "" && strings.HasSuffix(name, s.fails) {
		return syscall.EIO
	}
	return f.Sync()
}

// TestFolderIsSynced requires that every file and folder of an export is synced before it
// takes the place of an older one, which stays if that fails.
func TestFolderIsSynced(t *testing.T) {
	sc := arrow.NewSchema([]arrow.Field{
		schema.IDField(),
		{Name: "file_name", Type: arrow.BinaryTypes.String},
		schema.BlobField("image", schema.MediaImage, true),
	}, nil)
	export := func(dir string, s *syncs, content string) error {
		b := array.NewRecordBuilder(memory.DefaultAllocator, sc)
		defer b.Release()
		for _, name := range []string{"a/one.jpg", "a/b/two.jpg"} {
			id := schema.SampleID("test", name)
			b.Field(0).(*array.FixedSizeBinaryBuilder).Append(id[:])
			b.Field(1).(*array.StringBuilder).Append(name)
			b.Field(2).(*array.BinaryBuilder).Append([]byte(content))
		}
		rec := b.NewRecord()
		defer rec.Release()
		sink, err := Folder(dir, sc, Options{Force: true, sync: s.sync})
		if err != nil {
			return err
		}
		return errors.Join(sink.Write(rec), sink.Commit(), sink.Close())
	}
	dir := filepath.Join(t.TempDir(), "export")
	all := syncs{}
	if err := export(dir, &all, "first"); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all.names)
	want := []string{"", "/a", "/a/b", "/a/b/two.jpg", "/a/one.jpg", "/metadata.parquet"}
	if !slices.Equal(all.names, want) {
		t.Errorf("synced were %q, want %q", all.names, want)
	}
	for _, fails := range want[1:] {
		if err := export(dir, &syncs{fails: fails}, "second"); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s cannot be synced: %v", fails, err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "a", "one.jpg")); err != nil || string(data) != "first" {
			t.Errorf("%s could not be synced, and the older export has %q, %v", fails, data, err)
		}
	}
	if err := export(dir, &syncs{}, "second"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "a", "one.jpg")); err != nil || string(data) != "second" {
		t.Errorf("the new export has %q, %v", data, err)
	}
}
