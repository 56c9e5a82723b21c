package backup

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

func FuzzCatalog(f *testing.F) {
	s, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("data", "", false)})
	if err != nil {
		f.Fatal(err)
	}
	ref := schema.RefOf([]byte("blob"))
	good, err := json.Marshal(&catalog{
		format: format{formatName, formatVersion}, Generation: 3, Packs: []string{"00000001"},
		Snapshots: []*schema.Snapshot{
			{Dataset: "a", Number: 1, Schema: s, Chunks: []schema.Chunk{{BlobRef: ref, Rows: 1,
				BlobBytes: []int64{4}}}},
			{Dataset: "a", Number: 4, Parent: 1, Schema: s},
		},
		Selections: []*schema.Selection{{Dataset: "a", Snapshot: 4, Bitmap: ref}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"format":"bowstring-backup","version":1,"generation":1}`))
	for _, change := range [][2]string{
		{`"00000001"`, `"../../etc"`}, {`"number":4`, `"number":1`}, {`"snapshot":4`, `"snapshot":5`},
		{`"rows":1`, `"rows":-1`}, {`"dataset":"a"`, `"dataset":"../a"`}, {`"generation":3`, `"generation":0`},
	} {
		bad := strings.Replace(string(good), change[0], change[1], 1)
		if _, err := parseCatalog([]byte(bad)); err == nil || bad == string(good) {
			f.Fatalf("%s in place of %s is taken", change[1], change[0])
		}
		f.Add([]byte(bad))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCatalog(data)
		if err != nil {
			return
		}
		// What was taken is written as it was read.
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		back, err := parseCatalog(again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if third, err := json.Marshal(back); err != nil || !bytes.Equal(third, again) {
			t.Fatalf("%s became %s, %v", again, third, err)
		}
	})
}

func FuzzLine(f *testing.F) {
	f.Add(entry{schema.RefOf([]byte("blob")), 512}.append(nil))
	f.Add(bytes.Repeat([]byte("0"), lineBytes))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := parseLine(line)
		if err != nil {
			return
		}
		if got := e.append(nil); !strings.EqualFold(string(got), string(line)) {
			t.Fatalf("%q was read as %q", line, got)
		}
	})
}

// TestFind looks up every key and some that are not there, among keys that are spread
// evenly and among keys that are not.
func TestFind(t *testing.T) {
	const seed = 1
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, kind := range []string{"even", "alike", "one", "none"} {
		var entries []entry
		for i := range map[string]int{"even": 3000, "alike": 3000, "one": 1}[kind] {
			e := entry{schema.RefOf(binary.BigEndian.AppendUint32(nil, uint32(i))), int64(i)}
			if kind == "alike" {
				clear(e.Key[:r.IntN(20)])
			}
			entries = append(entries, e)
		}
		path := filepath.Join(t.TempDir(), "index")
		if err := writeIndex(path, entries); err != nil {
			t.Fatal(err)
		}
		x, err := openIndex(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if got, ok, err := x.find(e.Key); !ok || err != nil || got != e {
				t.Fatalf("%s: %v, %t, %v, want %v", kind, got, ok, err, e)
			}
			e.Key[31]++
			if _, ok, err := x.find(e.Key); ok || err != nil {
				t.Fatalf("%s: a key that is not there: %t, %v", kind, ok, err)
			}
		}
		for _, key := range []schema.Key{{}, {0: 255, 1: 255}, schema.Key(bytes.Repeat([]byte{255}, 32))} {
			if _, ok, err := x.find(key); ok || err != nil {
				t.Fatalf("%s: a key that is not there: %t, %v", kind, ok, err)
			}
		}
		if err := x.file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "index")
	if err := os.WriteFile(path, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openIndex(path); err == nil {
		t.Error("an index of half a line is taken")
	}
}
