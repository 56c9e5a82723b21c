package source

import (
	"bytes"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch/store/extent"
	"bowstring/schema"
)

// decodeUnit decodes a unit as a server does.
func decodeUnit(t *testing.T, file []byte, u schema.Unit) []byte {
	t.Helper()
	out := make([]byte, u.Size)
	if err := extent.Decode(u.Codec, file[u.Offset:u.Offset+u.Length], out); err != nil {
		t.Fatalf("unit %+v: %v", u, err)
	}
	return out
}

// extents counts blobs stored uncompressed, in units, and not in one piece.
type extents struct {
	plain, packed, none int
	whys                []string // of the latter
	rows                int
}

// checkExtents reads a data set, and compares each blob with the bytes at its extent. A
// null has no extent.
func checkExtents(t *testing.T, path string, opts Options) (found extents) {
	t.Helper()
	src, err := Open(t.Context(), path, opts)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(src, ReadOptions{Dataset: "d", Split: "train", Verify: VerifyNone})
	if err != nil {
		t.Fatal(err)
	}
	files, units := map[string][]byte{}, map[string]map[schema.Unit][]byte{}
	content := func(e Extent) []byte {
		if files[e.File] == nil {
			in, err := src.Files().Open(t.Context(), e.File)
			if err != nil {
				t.Fatal(err)
			}
			if files[e.File], err = io.ReadAll(in); err != nil {
				t.Fatal(err)
			}
			_ = in.Close()
			units[e.File] = map[schema.Unit][]byte{}
		}
		if e.Unit == nil {
			return files[e.File]
		}
		if units[e.File][*e.Unit] == nil {
			units[e.File][*e.Unit] = decodeUnit(t, files[e.File], *e.Unit)
		}
		return units[e.File][*e.Unit]
	}
	for b, err := range r.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range b.Bad {
			t.Errorf("bad: %s: %s", bad.Key, bad.Reason)
		}
		found.rows += len(b.Keys)
		for c := range b.Blobs {
			for row, blob := range b.Blobs[c] {
				switch e := b.At[c][row]; {
				case blob == nil:
					if !e.IsZero() {
						t.Errorf("%s: a null has the extent %+v", b.Keys[row], e)
					}
				case e.IsZero():
					found.none++
					found.whys = append(found.whys, e.Why)
				default:
					from := content(e)
					if e.Offset < 0 || e.Length < 0 || e.Offset+e.Length > int64(len(from)) ||
						!bytes.Equal(from[e.Offset:e.Offset+e.Length], blob) {
						t.Fatalf("%s, column %d: other bytes at %+v", b.Keys[row], c, e)
					}
					if e.Unit != nil {
						found.packed++
					} else {
						found.plain++
					}
				}
			}
		}
	}
	return found
}

// The bytes at each extent are those of the blob, in files of the libraries that define
// the formats.
func TestExtentsOfRealFiles(t *testing.T) {
	for name, want := range map[string]extents{
		"mds/plain":        {plain: 30, rows: 10},
		"mds/zstd":         {packed: 15, rows: 5},
		"mds/gz":           {packed: 15, rows: 5},
		"mds/br":           {packed: 15, rows: 5},
		"mds/bz2":          {packed: 15, rows: 5},
		"mds/snappy":       {packed: 15, rows: 5},
		"litdata/plain":    {plain: 42, rows: 7},
		"litdata/chunk":    {packed: 42, rows: 7},
		"litdata/batch":    {packed: 42, rows: 7},
		"litdata/sample":   {packed: 42, rows: 7},
		"litdata/bare":     {plain: 3, rows: 3},
		"tfrecord/records": {plain: 21, rows: 7},
		"tfrecord/packed":  {packed: 15, rows: 5},
		"huggingface/data": {plain: 8, rows: 8},
	} {
		t.Run(strings.ReplaceAll(name, "/", "-"), func(t *testing.T) {
			path := filepath.Join("testdata", name)
			got := checkExtents(t, path, Options{})
			slices.Sort(got.whys)
			if got.plain != want.plain || got.packed != want.packed || got.none != want.none || got.rows != want.rows {
				t.Errorf("%+v, want %+v; %q", got, want, slices.Compact(got.whys))
			}
		})
	}
}
