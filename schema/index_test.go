package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// pageList makes the pages of a chunk.
func pageList(rng *rand.Rand, n, columns int) []Chunk {
	pages := make([]Chunk, n)
	for i := range pages {
		pages[i] = Chunk{BlobRef: RefOf([]byte{byte(i), byte(rng.Uint32())}), Rows: 1 + rng.Int64N(2000),
			BlobBytes: make([]int64, columns)}
		pages[i].Size = rng.Int64N(1 << 20)
		for c := range pages[i].BlobBytes {
			pages[i].BlobBytes[c] = rng.Int64N(1 << 40)
		}
	}
	return pages
}

func TestIndex(t *testing.T) {
	rng := random(t)
	for range 200 {
		want := pageList(rng, 2+rng.IntN(70), rng.IntN(4))
		var list PageList
		for _, p := range want {
			list.Add(p)
		}
		data, c := list.Finish()
		c.BlobRef = RefOf(data)
		if list.Len() != 0 || c.Pages != len(want) {
			t.Fatalf("%d pages left, %d in the chunk", list.Len(), c.Pages)
		}
		got, err := c.OpenIndex(data)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
		broken := bytes.Clone(data)
		broken[rng.IntN(len(broken))] ^= 1 << rng.IntN(8)
		if _, err := c.OpenIndex(broken); !errors.Is(err, ErrDataLoss) {
			t.Fatalf("a flipped bit: %v", err)
		}
		// Nor is it believed where its checksum fits, and the snapshot says something else.
		for name, change := range map[string]func(*Chunk){
			"rows": func(c *Chunk) {
				c.Rows++
			}, "pages": func(c *Chunk) { c.Pages-- }, "bytes": func(c *Chunk) { c.PageBytes-- },
			"columns": func(c *Chunk) { c.BlobBytes = append(c.BlobBytes, 0) },
		} {
			other := c
			other.BlobBytes = append([]int64(nil), c.BlobBytes...)
			if change(&other); name == "" {
				continue
			}
			if _, err := other.OpenIndex(data); !errors.Is(err, ErrDataLoss) {
				t.Errorf("other %s: %v", name, err)
			}
		}
	}
	one := pageList(rng, 1, 2)
	var list PageList
	list.Add(one[0])
	if data, c := list.Finish(); data != nil || !reflect.DeepEqual(c, one[0]) {
		t.Errorf("one page became %v", c)
	}
}

func FuzzOpenIndex(f *testing.F) {
	var list PageList
	for _, p := range pageList(rand.New(rand.NewPCG(1, 2)), 3, 1) {
		list.Add(p)
	}
	data, c := list.Finish()
	f.Add(data, c.Pages, c.Rows, c.PageBytes)
	f.Add([]byte(indexMagic), 0, int64(0), int64(0))
	f.Fuzz(func(t *testing.T, data []byte, pages int, rows, size int64) {
		c := Chunk{BlobRef: RefOf(data), Rows: rows, BlobBytes: []int64{1}, Pages: pages, PageBytes: size}
		got, err := c.OpenIndex(data)
		if err != nil && !errors.Is(err, ErrDataLoss) {
			t.Fatal(err)
		}
		if err == nil && len(got) != pages {
			t.Fatalf("%d pages, want %d", len(got), pages)
		}
	})
}

// Records say whether they have pages, and of a version that is not known nothing is believed.
func TestRecordVersion(t *testing.T) {
	snap := Snapshot{Dataset: "d", Number: 1, Schema: everySchema(t),
		Chunks: []Chunk{{Rows: 1, BlobBytes: []int64{0, 0, 0}}}}
	old, err := json.Marshal(snap)
	if err != nil || strings.Contains(string(old), "version") || strings.Contains(string(old), "pages") {
		t.Errorf("without pages: %s, %v", old, err)
	}
	snap.Chunks[0].Pages, snap.Chunks[0].PageBytes = 2, 10
	record, err := json.Marshal(snap)
	if err != nil || !strings.HasPrefix(string(record), `{"version":2,`) {
		t.Errorf("with pages: %s, %v", record, err)
	}
	var read Snapshot
	if err := json.Unmarshal(record, &read); err != nil || !reflect.DeepEqual(read.Chunks, snap.Chunks) {
		t.Errorf("read back %v, %v", read.Chunks, err)
	}
	snap.Sets = []SetRef{{Prefix: ObjectPrefix{1, 2}, Blob: RefOf([]byte("set"))}, {Prefix: ObjectPrefix{3}}}
	if record, err = json.Marshal(snap); err != nil || !strings.HasPrefix(string(record), `{"version":3,`) {
		t.Errorf("with sets: %s, %v", record, err)
	}
	if err := json.Unmarshal(record, &read); err != nil || !reflect.DeepEqual(read.Sets, snap.Sets) {
		t.Errorf("read back %v, %v", read.Sets, err)
	}
	later := strings.Replace(string(record), `"version":3`, `"version":4`, 1)
	if err := json.Unmarshal([]byte(later), &read); !errors.Is(err, ErrDataLoss) ||
		!strings.Contains(err.Error(), "version 4") {
		t.Errorf("a later version: %v", err)
	}
}
